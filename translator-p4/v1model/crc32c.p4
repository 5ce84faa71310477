// CRC-32C in plain arithmetic: v1model has CRC-32/ISO-HDLC as its only polynomial of 32 bits.
//
// For data of one length, a CRC is affine: the CRC of all zeros, XORed for each set bit with what
// that bit alone changes. So each bit has a constant here. A test compares the constants with those
// computed from the polynomial (`translator-p4/tests/sources.rs`).
#ifndef DTA_CRC32C
#define DTA_CRC32C

#define BIT(data, at, constant) (32w##constant & (32w0 - (bit<32>)data[at:at]))

// h = CRC-32C of a key of 16 bytes.
action crc32c_of_key(in bit<128> key, out bit<32> h) {
    h = 32w0x42709aea
        ^ BIT(key, 0, 0xf26b8303) ^ BIT(key, 1, 0xe13b70f7) ^ BIT(key, 2, 0xc79a971f) ^ BIT(key, 3, 0x8ad958cf)
        ^ BIT(key, 4, 0x105ec76f) ^ BIT(key, 5, 0x20bd8ede) ^ BIT(key, 6, 0x417b1dbc) ^ BIT(key, 7, 0x82f63b78)
        ^ BIT(key, 8, 0x13a29877) ^ BIT(key, 9, 0x274530ee) ^ BIT(key, 10, 0x4e8a61dc) ^ BIT(key, 11, 0x9d14c3b8)
        ^ BIT(key, 12, 0x3fc5f181) ^ BIT(key, 13, 0x7f8be302) ^ BIT(key, 14, 0xff17c604) ^ BIT(key, 15, 0xfbc3faf9)
        ^ BIT(key, 16, 0xa541927e) ^ BIT(key, 17, 0x4f6f520d) ^ BIT(key, 18, 0x9edea41a) ^ BIT(key, 19, 0x38513ec5)
        ^ BIT(key, 20, 0x70a27d8a) ^ BIT(key, 21, 0xe144fb14) ^ BIT(key, 22, 0xc76580d9) ^ BIT(key, 23, 0x8b277743)
        ^ BIT(key, 24, 0xdd45aab8) ^ BIT(key, 25, 0xbf672381) ^ BIT(key, 26, 0x7b2231f3) ^ BIT(key, 27, 0xf64463e6)
        ^ BIT(key, 28, 0xe964b13d) ^ BIT(key, 29, 0xd725148b) ^ BIT(key, 30, 0xaba65fe7) ^ BIT(key, 31, 0x52a0c93f)
        ^ BIT(key, 32, 0x38116fac) ^ BIT(key, 33, 0x7022df58) ^ BIT(key, 34, 0xe045beb0) ^ BIT(key, 35, 0xc5670b91)
        ^ BIT(key, 36, 0x8f2261d3) ^ BIT(key, 37, 0x1ba8b557) ^ BIT(key, 38, 0x37516aae) ^ BIT(key, 39, 0x6ea2d55c)
        ^ BIT(key, 40, 0xef306b19) ^ BIT(key, 41, 0xdb8ca0c3) ^ BIT(key, 42, 0xb2f53777) ^ BIT(key, 43, 0x6006181f)
        ^ BIT(key, 44, 0xc00c303e) ^ BIT(key, 45, 0x85f4168d) ^ BIT(key, 46, 0x0e045beb) ^ BIT(key, 47, 0x1c08b7d6)
        ^ BIT(key, 48, 0x68032cc8) ^ BIT(key, 49, 0xd0065990) ^ BIT(key, 50, 0xa5e0c5d1) ^ BIT(key, 51, 0x4e2dfd53)
        ^ BIT(key, 52, 0x9c5bfaa6) ^ BIT(key, 53, 0x3d5b83bd) ^ BIT(key, 54, 0x7ab7077a) ^ BIT(key, 55, 0xf56e0ef4)
        ^ BIT(key, 56, 0x493c7d27) ^ BIT(key, 57, 0x9278fa4e) ^ BIT(key, 58, 0x211d826d) ^ BIT(key, 59, 0x423b04da)
        ^ BIT(key, 60, 0x847609b4) ^ BIT(key, 61, 0x0d006599) ^ BIT(key, 62, 0x1a00cb32) ^ BIT(key, 63, 0x34019664)
        ^ BIT(key, 64, 0xf43ed648) ^ BIT(key, 65, 0xed91da61) ^ BIT(key, 66, 0xdecfc233) ^ BIT(key, 67, 0xb873f297)
        ^ BIT(key, 68, 0x750b93df) ^ BIT(key, 69, 0xea1727be) ^ BIT(key, 70, 0xd1c2398d) ^ BIT(key, 71, 0xa66805eb)
        ^ BIT(key, 72, 0xcb567ba5) ^ BIT(key, 73, 0x934081bb) ^ BIT(key, 74, 0x236d7587) ^ BIT(key, 75, 0x46daeb0e)
        ^ BIT(key, 76, 0x8db5d61c) ^ BIT(key, 77, 0x1e87dac9) ^ BIT(key, 78, 0x3d0fb592) ^ BIT(key, 79, 0x7a1f6b24)
        ^ BIT(key, 80, 0x9771f7c1) ^ BIT(key, 81, 0x2b0f9973) ^ BIT(key, 82, 0x561f32e6) ^ BIT(key, 83, 0xac3e65cc)
        ^ BIT(key, 84, 0x5d90bd69) ^ BIT(key, 85, 0xbb217ad2) ^ BIT(key, 86, 0x73ae8355) ^ BIT(key, 87, 0xe75d06aa)
        ^ BIT(key, 88, 0x3171d430) ^ BIT(key, 89, 0x62e3a860) ^ BIT(key, 90, 0xc5c750c0) ^ BIT(key, 91, 0x8e62d771)
        ^ BIT(key, 92, 0x1929d813) ^ BIT(key, 93, 0x3253b026) ^ BIT(key, 94, 0x64a7604c) ^ BIT(key, 95, 0xc94ec098)
        ^ BIT(key, 96, 0x30d23865) ^ BIT(key, 97, 0x61a470ca) ^ BIT(key, 98, 0xc348e194) ^ BIT(key, 99, 0x837db5d9)
        ^ BIT(key, 100, 0x03171d43) ^ BIT(key, 101, 0x062e3a86) ^ BIT(key, 102, 0x0c5c750c) ^ BIT(key, 103, 0x18b8ea18)
        ^ BIT(key, 104, 0x54075546) ^ BIT(key, 105, 0xa80eaa8c) ^ BIT(key, 106, 0x55f123e9) ^ BIT(key, 107, 0xabe247d2)
        ^ BIT(key, 108, 0x5228f955) ^ BIT(key, 109, 0xa451f2aa) ^ BIT(key, 110, 0x4d4f93a5) ^ BIT(key, 111, 0x9a9f274a)
        ^ BIT(key, 112, 0x678efd01) ^ BIT(key, 113, 0xcf1dfa02) ^ BIT(key, 114, 0x9bd782f5) ^ BIT(key, 115, 0x3243731b)
        ^ BIT(key, 116, 0x6486e636) ^ BIT(key, 117, 0xc90dcc6c) ^ BIT(key, 118, 0x97f7ee29) ^ BIT(key, 119, 0x2a03aaa3)
        ^ BIT(key, 120, 0xf20c0dfe) ^ BIT(key, 121, 0xe1f46d0d) ^ BIT(key, 122, 0xc604aceb) ^ BIT(key, 123, 0x89e52f27)
        ^ BIT(key, 124, 0x162628bf) ^ BIT(key, 125, 0x2c4c517e) ^ BIT(key, 126, 0x5898a2fc) ^ BIT(key, 127, 0xb13145f8);
}

// CRC-32C of le32(x).
action crc32c_of_le32(in bit<32> x, out bit<32> crc) {
    crc = 32w0x48674bc7
        ^ BIT(x, 0, 0xdd45aab8) ^ BIT(x, 1, 0xbf672381) ^ BIT(x, 2, 0x7b2231f3) ^ BIT(x, 3, 0xf64463e6)
        ^ BIT(x, 4, 0xe964b13d) ^ BIT(x, 5, 0xd725148b) ^ BIT(x, 6, 0xaba65fe7) ^ BIT(x, 7, 0x52a0c93f)
        ^ BIT(x, 8, 0xa541927e) ^ BIT(x, 9, 0x4f6f520d) ^ BIT(x, 10, 0x9edea41a) ^ BIT(x, 11, 0x38513ec5)
        ^ BIT(x, 12, 0x70a27d8a) ^ BIT(x, 13, 0xe144fb14) ^ BIT(x, 14, 0xc76580d9) ^ BIT(x, 15, 0x8b277743)
        ^ BIT(x, 16, 0x13a29877) ^ BIT(x, 17, 0x274530ee) ^ BIT(x, 18, 0x4e8a61dc) ^ BIT(x, 19, 0x9d14c3b8)
        ^ BIT(x, 20, 0x3fc5f181) ^ BIT(x, 21, 0x7f8be302) ^ BIT(x, 22, 0xff17c604) ^ BIT(x, 23, 0xfbc3faf9)
        ^ BIT(x, 24, 0xf26b8303) ^ BIT(x, 25, 0xe13b70f7) ^ BIT(x, 26, 0xc79a971f) ^ BIT(x, 27, 0x8ad958cf)
        ^ BIT(x, 28, 0x105ec76f) ^ BIT(x, 29, 0x20bd8ede) ^ BIT(x, 30, 0x417b1dbc) ^ BIT(x, 31, 0x82f63b78);
}

#endif
