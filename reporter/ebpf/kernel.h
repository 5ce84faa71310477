/* The members of the kernel's structs that are read. The loader adjusts each access to the running kernel's layout (CO-RE). */
#pragma once
#include "helpers.h"

struct ns_common {
    u32 inum;
} RELOCATED;

struct net {
    struct ns_common ns;
} RELOCATED;

typedef struct {
    struct net *net;
} possible_net_t;

struct net_device {
    int ifindex;
    unsigned short type;
    possible_net_t nd_net;
} RELOCATED;

struct sk_buff {
    struct net_device *dev;
    unsigned int len;
    unsigned int data_len;
    u16 vlan_tci;
    u16 protocol;
    u16 network_header;
    u16 mac_header;
    unsigned int end;
    unsigned char *head;
    unsigned char *data;
} RELOCATED;

struct skb_shared_info {
    unsigned short gso_size;
    unsigned short gso_segs;
} RELOCATED;

struct xdp_rxq_info {
    struct net_device *dev;
} RELOCATED;

struct xdp_buff {
    struct xdp_rxq_info *rxq;
} RELOCATED;

/* The contexts of classifiers and XDP programs: a stable interface, not relocated. */
struct __sk_buff {
    u32 len, pkt_type, mark, queue_mapping, protocol, vlan_present, vlan_tci, vlan_proto, priority, ingress_ifindex, ifindex;
    u32 tc_index, cb[5], hash, tc_classid, data, data_end, napi_id, family, remote_ip4, local_ip4, remote_ip6[4], local_ip6[4];
    u32 remote_port, local_port, data_meta;
    u64 flow_keys, tstamp;
    u32 wire_len, gso_segs;
    u64 sk;
    u32 gso_size;
};

struct xdp_md {
    u32 data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex;
};
