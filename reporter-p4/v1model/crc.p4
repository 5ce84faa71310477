// CRC-32C and CRC-32K of up to 17 bytes, in plain arithmetic: the only 32-bit CRC of v1model is CRC-32.
//
// For data of one length, a CRC is affine: each bit that is set XORs in a constant, which depends on
// the bit's distance from the end. Shorter data is padded with zeros in front; `constant` accounts for
// the length. The tests compare the resulting keys with those of dta-proto.
#ifndef REPORTER_V1MODEL_CRC
#define REPORTER_V1MODEL_CRC

#define SUM_BIT(data, at, constant) (32w##constant & (32w0 - (bit<32>)data[at:at]))

#define CRC32C_OF_13 32w0xbc5ba5e4
#define CRC32C_OF_14 32w0x766b37f1
#define CRC32C_OF_17 32w0xdaeda3e9
#define CRC32K_OF_13 32w0x481c145e
#define CRC32K_OF_14 32w0x5311aed5
#define CRC32K_OF_17 32w0xa3c208c9

action crc32c(in bit<136> data, in bit<32> constant, out bit<32> sum) {
    sum = constant
        ^ SUM_BIT(data, 0, 0xf26b8303) ^ SUM_BIT(data, 1, 0xe13b70f7) ^ SUM_BIT(data, 2, 0xc79a971f)
        ^ SUM_BIT(data, 3, 0x8ad958cf) ^ SUM_BIT(data, 4, 0x105ec76f) ^ SUM_BIT(data, 5, 0x20bd8ede)
        ^ SUM_BIT(data, 6, 0x417b1dbc) ^ SUM_BIT(data, 7, 0x82f63b78) ^ SUM_BIT(data, 8, 0x13a29877)
        ^ SUM_BIT(data, 9, 0x274530ee) ^ SUM_BIT(data, 10, 0x4e8a61dc) ^ SUM_BIT(data, 11, 0x9d14c3b8)
        ^ SUM_BIT(data, 12, 0x3fc5f181) ^ SUM_BIT(data, 13, 0x7f8be302) ^ SUM_BIT(data, 14, 0xff17c604)
        ^ SUM_BIT(data, 15, 0xfbc3faf9) ^ SUM_BIT(data, 16, 0xa541927e) ^ SUM_BIT(data, 17, 0x4f6f520d)
        ^ SUM_BIT(data, 18, 0x9edea41a) ^ SUM_BIT(data, 19, 0x38513ec5) ^ SUM_BIT(data, 20, 0x70a27d8a)
        ^ SUM_BIT(data, 21, 0xe144fb14) ^ SUM_BIT(data, 22, 0xc76580d9) ^ SUM_BIT(data, 23, 0x8b277743)
        ^ SUM_BIT(data, 24, 0xdd45aab8) ^ SUM_BIT(data, 25, 0xbf672381) ^ SUM_BIT(data, 26, 0x7b2231f3)
        ^ SUM_BIT(data, 27, 0xf64463e6) ^ SUM_BIT(data, 28, 0xe964b13d) ^ SUM_BIT(data, 29, 0xd725148b)
        ^ SUM_BIT(data, 30, 0xaba65fe7) ^ SUM_BIT(data, 31, 0x52a0c93f) ^ SUM_BIT(data, 32, 0x38116fac)
        ^ SUM_BIT(data, 33, 0x7022df58) ^ SUM_BIT(data, 34, 0xe045beb0) ^ SUM_BIT(data, 35, 0xc5670b91)
        ^ SUM_BIT(data, 36, 0x8f2261d3) ^ SUM_BIT(data, 37, 0x1ba8b557) ^ SUM_BIT(data, 38, 0x37516aae)
        ^ SUM_BIT(data, 39, 0x6ea2d55c) ^ SUM_BIT(data, 40, 0xef306b19) ^ SUM_BIT(data, 41, 0xdb8ca0c3)
        ^ SUM_BIT(data, 42, 0xb2f53777) ^ SUM_BIT(data, 43, 0x6006181f) ^ SUM_BIT(data, 44, 0xc00c303e)
        ^ SUM_BIT(data, 45, 0x85f4168d) ^ SUM_BIT(data, 46, 0x0e045beb) ^ SUM_BIT(data, 47, 0x1c08b7d6)
        ^ SUM_BIT(data, 48, 0x68032cc8) ^ SUM_BIT(data, 49, 0xd0065990) ^ SUM_BIT(data, 50, 0xa5e0c5d1)
        ^ SUM_BIT(data, 51, 0x4e2dfd53) ^ SUM_BIT(data, 52, 0x9c5bfaa6) ^ SUM_BIT(data, 53, 0x3d5b83bd)
        ^ SUM_BIT(data, 54, 0x7ab7077a) ^ SUM_BIT(data, 55, 0xf56e0ef4) ^ SUM_BIT(data, 56, 0x493c7d27)
        ^ SUM_BIT(data, 57, 0x9278fa4e) ^ SUM_BIT(data, 58, 0x211d826d) ^ SUM_BIT(data, 59, 0x423b04da)
        ^ SUM_BIT(data, 60, 0x847609b4) ^ SUM_BIT(data, 61, 0x0d006599) ^ SUM_BIT(data, 62, 0x1a00cb32)
        ^ SUM_BIT(data, 63, 0x34019664) ^ SUM_BIT(data, 64, 0xf43ed648) ^ SUM_BIT(data, 65, 0xed91da61)
        ^ SUM_BIT(data, 66, 0xdecfc233) ^ SUM_BIT(data, 67, 0xb873f297) ^ SUM_BIT(data, 68, 0x750b93df)
        ^ SUM_BIT(data, 69, 0xea1727be) ^ SUM_BIT(data, 70, 0xd1c2398d) ^ SUM_BIT(data, 71, 0xa66805eb)
        ^ SUM_BIT(data, 72, 0xcb567ba5) ^ SUM_BIT(data, 73, 0x934081bb) ^ SUM_BIT(data, 74, 0x236d7587)
        ^ SUM_BIT(data, 75, 0x46daeb0e) ^ SUM_BIT(data, 76, 0x8db5d61c) ^ SUM_BIT(data, 77, 0x1e87dac9)
        ^ SUM_BIT(data, 78, 0x3d0fb592) ^ SUM_BIT(data, 79, 0x7a1f6b24) ^ SUM_BIT(data, 80, 0x9771f7c1)
        ^ SUM_BIT(data, 81, 0x2b0f9973) ^ SUM_BIT(data, 82, 0x561f32e6) ^ SUM_BIT(data, 83, 0xac3e65cc)
        ^ SUM_BIT(data, 84, 0x5d90bd69) ^ SUM_BIT(data, 85, 0xbb217ad2) ^ SUM_BIT(data, 86, 0x73ae8355)
        ^ SUM_BIT(data, 87, 0xe75d06aa) ^ SUM_BIT(data, 88, 0x3171d430) ^ SUM_BIT(data, 89, 0x62e3a860)
        ^ SUM_BIT(data, 90, 0xc5c750c0) ^ SUM_BIT(data, 91, 0x8e62d771) ^ SUM_BIT(data, 92, 0x1929d813)
        ^ SUM_BIT(data, 93, 0x3253b026) ^ SUM_BIT(data, 94, 0x64a7604c) ^ SUM_BIT(data, 95, 0xc94ec098)
        ^ SUM_BIT(data, 96, 0x30d23865) ^ SUM_BIT(data, 97, 0x61a470ca) ^ SUM_BIT(data, 98, 0xc348e194)
        ^ SUM_BIT(data, 99, 0x837db5d9) ^ SUM_BIT(data, 100, 0x03171d43) ^ SUM_BIT(data, 101, 0x062e3a86)
        ^ SUM_BIT(data, 102, 0x0c5c750c) ^ SUM_BIT(data, 103, 0x18b8ea18) ^ SUM_BIT(data, 104, 0x54075546)
        ^ SUM_BIT(data, 105, 0xa80eaa8c) ^ SUM_BIT(data, 106, 0x55f123e9) ^ SUM_BIT(data, 107, 0xabe247d2)
        ^ SUM_BIT(data, 108, 0x5228f955) ^ SUM_BIT(data, 109, 0xa451f2aa) ^ SUM_BIT(data, 110, 0x4d4f93a5)
        ^ SUM_BIT(data, 111, 0x9a9f274a) ^ SUM_BIT(data, 112, 0x678efd01) ^ SUM_BIT(data, 113, 0xcf1dfa02)
        ^ SUM_BIT(data, 114, 0x9bd782f5) ^ SUM_BIT(data, 115, 0x3243731b) ^ SUM_BIT(data, 116, 0x6486e636)
        ^ SUM_BIT(data, 117, 0xc90dcc6c) ^ SUM_BIT(data, 118, 0x97f7ee29) ^ SUM_BIT(data, 119, 0x2a03aaa3)
        ^ SUM_BIT(data, 120, 0xf20c0dfe) ^ SUM_BIT(data, 121, 0xe1f46d0d) ^ SUM_BIT(data, 122, 0xc604aceb)
        ^ SUM_BIT(data, 123, 0x89e52f27) ^ SUM_BIT(data, 124, 0x162628bf) ^ SUM_BIT(data, 125, 0x2c4c517e)
        ^ SUM_BIT(data, 126, 0x5898a2fc) ^ SUM_BIT(data, 127, 0xb13145f8) ^ SUM_BIT(data, 128, 0x5fe4dc5f)
        ^ SUM_BIT(data, 129, 0xbfc9b8be) ^ SUM_BIT(data, 130, 0x7a7f078d) ^ SUM_BIT(data, 131, 0xf4fe0f1a)
        ^ SUM_BIT(data, 132, 0xec1068c5) ^ SUM_BIT(data, 133, 0xddcca77b) ^ SUM_BIT(data, 134, 0xbe753807)
        ^ SUM_BIT(data, 135, 0x790606ff);
}

action crc32k(in bit<136> data, in bit<32> constant, out bit<32> sum) {
    sum = constant
        ^ SUM_BIT(data, 0, 0x9695c4ca) ^ SUM_BIT(data, 1, 0xfb4839c9) ^ SUM_BIT(data, 2, 0x20f3c3cf)
        ^ SUM_BIT(data, 3, 0x41e7879e) ^ SUM_BIT(data, 4, 0x83cf0f3c) ^ SUM_BIT(data, 5, 0xd1fdae25)
        ^ SUM_BIT(data, 6, 0x7598ec17) ^ SUM_BIT(data, 7, 0xeb31d82e) ^ SUM_BIT(data, 8, 0x24901faa)
        ^ SUM_BIT(data, 9, 0x49203f54) ^ SUM_BIT(data, 10, 0x92407ea8) ^ SUM_BIT(data, 11, 0xf2e34d0d)
        ^ SUM_BIT(data, 12, 0x33a52a47) ^ SUM_BIT(data, 13, 0x674a548e) ^ SUM_BIT(data, 14, 0xce94a91c)
        ^ SUM_BIT(data, 15, 0x4b4ae265) ^ SUM_BIT(data, 16, 0x80475843) ^ SUM_BIT(data, 17, 0xd6ed00db)
        ^ SUM_BIT(data, 18, 0x7bb9b1eb) ^ SUM_BIT(data, 19, 0xf77363d6) ^ SUM_BIT(data, 20, 0x388577f1)
        ^ SUM_BIT(data, 21, 0x710aefe2) ^ SUM_BIT(data, 22, 0xe215dfc4) ^ SUM_BIT(data, 23, 0x12480fd5)
        ^ SUM_BIT(data, 24, 0x18c5564c) ^ SUM_BIT(data, 25, 0x318aac98) ^ SUM_BIT(data, 26, 0x63155930)
        ^ SUM_BIT(data, 27, 0xc62ab260) ^ SUM_BIT(data, 28, 0x5a36d49d) ^ SUM_BIT(data, 29, 0xb46da93a)
        ^ SUM_BIT(data, 30, 0xbeb8e229) ^ SUM_BIT(data, 31, 0xab12740f) ^ SUM_BIT(data, 32, 0x14946d10)
        ^ SUM_BIT(data, 33, 0x2928da20) ^ SUM_BIT(data, 34, 0x5251b440) ^ SUM_BIT(data, 35, 0xa4a36880)
        ^ SUM_BIT(data, 36, 0x9f25615d) ^ SUM_BIT(data, 37, 0xe82972e7) ^ SUM_BIT(data, 38, 0x06315593)
        ^ SUM_BIT(data, 39, 0x0c62ab26) ^ SUM_BIT(data, 40, 0x83db9b51) ^ SUM_BIT(data, 41, 0xd1d486ff)
        ^ SUM_BIT(data, 42, 0x75cabda3) ^ SUM_BIT(data, 43, 0xeb957b46) ^ SUM_BIT(data, 44, 0x014946d1)
        ^ SUM_BIT(data, 45, 0x02928da2) ^ SUM_BIT(data, 46, 0x05251b44) ^ SUM_BIT(data, 47, 0x0a4a3688)
        ^ SUM_BIT(data, 48, 0x6041fc7a) ^ SUM_BIT(data, 49, 0xc083f8f4) ^ SUM_BIT(data, 50, 0x576441b5)
        ^ SUM_BIT(data, 51, 0xaec8836a) ^ SUM_BIT(data, 52, 0x8bf2b689) ^ SUM_BIT(data, 53, 0xc186dd4f)
        ^ SUM_BIT(data, 54, 0x556e0ac3) ^ SUM_BIT(data, 55, 0xaadc1586) ^ SUM_BIT(data, 56, 0x9d65b2a5)
        ^ SUM_BIT(data, 57, 0xeca8d517) ^ SUM_BIT(data, 58, 0x0f321a73) ^ SUM_BIT(data, 59, 0x1e6434e6)
        ^ SUM_BIT(data, 60, 0x3cc869cc) ^ SUM_BIT(data, 61, 0x7990d398) ^ SUM_BIT(data, 62, 0xf321a730)
        ^ SUM_BIT(data, 63, 0x3020fe3d) ^ SUM_BIT(data, 64, 0x8c3714bc) ^ SUM_BIT(data, 65, 0xce0d9925)
        ^ SUM_BIT(data, 66, 0x4a788217) ^ SUM_BIT(data, 67, 0x94f1042e) ^ SUM_BIT(data, 68, 0xff81b801)
        ^ SUM_BIT(data, 69, 0x2960c05f) ^ SUM_BIT(data, 70, 0x52c180be) ^ SUM_BIT(data, 71, 0xa583017c)
        ^ SUM_BIT(data, 72, 0xd89b0a72) ^ SUM_BIT(data, 73, 0x6755a4b9) ^ SUM_BIT(data, 74, 0xceab4972)
        ^ SUM_BIT(data, 75, 0x4b3522b9) ^ SUM_BIT(data, 76, 0x966a4572) ^ SUM_BIT(data, 77, 0xfab73ab9)
        ^ SUM_BIT(data, 78, 0x230dc52f) ^ SUM_BIT(data, 79, 0x461b8a5e) ^ SUM_BIT(data, 80, 0xdc3aefcd)
        ^ SUM_BIT(data, 81, 0x6e166fc7) ^ SUM_BIT(data, 82, 0xdc2cdf8e) ^ SUM_BIT(data, 83, 0x6e3a0f41)
        ^ SUM_BIT(data, 84, 0xdc741e82) ^ SUM_BIT(data, 85, 0x6e8b8d59) ^ SUM_BIT(data, 86, 0xdd171ab2)
        ^ SUM_BIT(data, 87, 0x6c4d8539) ^ SUM_BIT(data, 88, 0x69f48e4d) ^ SUM_BIT(data, 89, 0xd3e91c9a)
        ^ SUM_BIT(data, 90, 0x71b18969) ^ SUM_BIT(data, 91, 0xe36312d2) ^ SUM_BIT(data, 92, 0x10a595f9)
        ^ SUM_BIT(data, 93, 0x214b2bf2) ^ SUM_BIT(data, 94, 0x429657e4) ^ SUM_BIT(data, 95, 0x852cafc8)
        ^ SUM_BIT(data, 96, 0x82709802) ^ SUM_BIT(data, 97, 0xd2828059) ^ SUM_BIT(data, 98, 0x7366b0ef)
        ^ SUM_BIT(data, 99, 0xe6cd61de) ^ SUM_BIT(data, 100, 0x1bf973e1) ^ SUM_BIT(data, 101, 0x37f2e7c2)
        ^ SUM_BIT(data, 102, 0x6fe5cf84) ^ SUM_BIT(data, 103, 0xdfcb9f08) ^ SUM_BIT(data, 104, 0xfbca4951)
        ^ SUM_BIT(data, 105, 0x21f722ff) ^ SUM_BIT(data, 106, 0x43ee45fe) ^ SUM_BIT(data, 107, 0x87dc8bfc)
        ^ SUM_BIT(data, 108, 0xd9daa7a5) ^ SUM_BIT(data, 109, 0x65d6ff17) ^ SUM_BIT(data, 110, 0xcbadfe2e)
        ^ SUM_BIT(data, 111, 0x41384c01) ^ SUM_BIT(data, 112, 0x6039eda8) ^ SUM_BIT(data, 113, 0xc073db50)
        ^ SUM_BIT(data, 114, 0x568406fd) ^ SUM_BIT(data, 115, 0xad080dfa) ^ SUM_BIT(data, 116, 0x8c73aba9)
        ^ SUM_BIT(data, 117, 0xce84e70f) ^ SUM_BIT(data, 118, 0x4b6a7e43) ^ SUM_BIT(data, 119, 0x96d4fc86)
        ^ SUM_BIT(data, 120, 0x7b4bc878) ^ SUM_BIT(data, 121, 0xf69790f0) ^ SUM_BIT(data, 122, 0x3b4c91bd)
        ^ SUM_BIT(data, 123, 0x7699237a) ^ SUM_BIT(data, 124, 0xed3246f4) ^ SUM_BIT(data, 125, 0x0c073db5)
        ^ SUM_BIT(data, 126, 0x180e7b6a) ^ SUM_BIT(data, 127, 0x301cf6d4) ^ SUM_BIT(data, 128, 0x66368158)
        ^ SUM_BIT(data, 129, 0xcc6d02b0) ^ SUM_BIT(data, 130, 0x4eb9b53d) ^ SUM_BIT(data, 131, 0x9d736a7a)
        ^ SUM_BIT(data, 132, 0xec8564a9) ^ SUM_BIT(data, 133, 0x0f69790f) ^ SUM_BIT(data, 134, 0x1ed2f21e)
        ^ SUM_BIT(data, 135, 0x3da5e43c);
}

#endif
