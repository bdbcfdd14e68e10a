/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * What the programs here use of the kernel: the fields of its structures that they read or write, and the helpers that they call.
 *
 * The structures name only the fields that are used. Where each one lies is found when the object is loaded (BTF, CO-RE), so one object
 * fits all kernels from 6.10 on. Numbers of helpers and constants are the kernel's interface to user space (linux/bpf.h, linux/tcp.h).
 */
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int s32;
typedef long long s64;
typedef u16 __be16;
typedef u32 __be32;
typedef u32 __wsum;

#define bool _Bool
#define true 1
#define false 0
#define SEC(name) __attribute__((section(name), used))
#define INLINE static __attribute__((always_inline)) inline
/* The field lies where the running kernel's type information says. */
#define OF_KERNEL __attribute__((preserve_access_index))
#define OF_KERNEL_OR_NONE __attribute__((weak, section(".ksyms")))

/* Definitions of maps, as libbpf reads them from the object's type information. */
#define NUMBER(name, value) int(*name)[value]
#define TYPE(name, type) type *name

enum {
	MAP_ARRAY = 2,
	MAP_QUEUE = 22,
	MAP_SK_STORAGE = 24,
	MAP_RINGBUF = 27,
	NO_PREALLOC = 1,
	STORAGE_CREATE = 1,
};

struct bpf_map;

struct bpf_spin_lock {
	u32 value;
};

struct in6_addr {
	union {
		u32 u6_addr32[4];
	} in6_u;
} OF_KERNEL;

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	u16 skc_num;
	u16 skc_family;
	volatile u8 skc_state;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
} OF_KERNEL;

typedef struct {
	u32 val;
} OF_KERNEL kuid_t;

struct sock {
	struct sock_common __sk_common;
	u32 sk_pacing_status;
	unsigned long sk_pacing_rate;
	unsigned long sk_max_pacing_rate;
	kuid_t sk_uid;
} OF_KERNEL;

struct inet_connection_sock {
	u64 icsk_ca_priv[13];
} OF_KERNEL;

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	u32 mss_cache;
	u32 snd_cwnd;
	u32 snd_cwnd_clamp;
	u32 snd_ssthresh;
	u32 prior_cwnd;
	u32 prr_out;
	u32 packets_out;
	u32 sacked_out;
	u32 lost_out;
	u32 retrans_out;
	u32 write_seq;
	u32 snd_nxt;
	u32 srtt_us;
	u32 undo_marker;
	u32 delivered_ce;
	u64 tcp_mstamp;
	u64 bytes_acked;
} OF_KERNEL;

/* Events of a flow; only handed on. */
enum tcp_ca_event { CA_EVENT_TX_START };

struct rate_sample {
	u64 prior_mstamp;
	s32 delivered;
	u32 snd_interval_us;
	u32 rcv_interval_us;
	long interval_us;
	long rtt_us;
	int losses;
	u32 acked_sacked;
	u32 prior_in_flight;
} OF_KERNEL;

struct ack_sample {
	u32 pkts_acked;
	s32 rtt_us;
	u32 in_flight;
} OF_KERNEL;

struct bpf_iter__tcp {
	struct sock_common *sk_common;
} OF_KERNEL;

/* The operations of a congestion control, under the kernel's name of the structure; what is not here stays empty. */
struct tcp_congestion_ops {
	u32 (*ssthresh)(struct sock *sk);
	void (*set_state)(struct sock *sk, u8 state);
	void (*cwnd_event)(struct sock *sk, enum tcp_ca_event event);
	void (*pkts_acked)(struct sock *sk, const struct ack_sample *sample);
	void (*cong_control)(struct sock *sk, u32 ack, int flag, const struct rate_sample *rs);
	u32 (*undo_cwnd)(struct sock *sk);
	void (*init)(struct sock *sk);
	void (*release)(struct sock *sk);
	u32 flags;
	char name[16];
};

/* States of loss recovery (linux/tcp.h, enum tcp_ca_state). */
enum { CA_OPEN, CA_DISORDER, CA_CWR, CA_RECOVERY, CA_LOSS };

enum {
	FAMILY_INET = 2,
	FAMILY_INET6 = 10,
	PROTOCOL_TCP = 6,
	OPTION_CONGESTION = 13,
	/* enum tcp_states */
	STATE_ESTABLISHED = 1,
	STATE_LISTEN = 10,
	/* Our own word of a flow's `icsk_ca_priv`: the last one. */
	PRIVATE_FLAG = 12,
	/* `ssthresh` of a flow that has seen no loss. */
	SSTHRESH_INFINITE = 0x7fffffff,
	/* sk_pacing_status: nothing paces, and the stack's own timers do. */
	PACING_NONE = 0,
	PACING_NEEDED = 1,
};

static void *(*map_lookup)(void *map, const void *key) = (void *)1;
static long (*setsockopt)(void *sk, int level, int name, void *value, int len) = (void *)49;
static long (*getsockopt)(void *sk, int level, int name, void *value, int len) = (void *)57;
static long (*map_push)(void *map, const void *value, u64 flags) = (void *)87;
static long (*map_pop)(void *map, void *value) = (void *)88;
static long (*spin_lock)(struct bpf_spin_lock *lock) = (void *)93;
static long (*spin_unlock)(struct bpf_spin_lock *lock) = (void *)94;
static void *(*storage_of)(void *map, void *sk, void *value, u64 flags) = (void *)107;
static long (*storage_delete)(void *map, void *sk) = (void *)108;
static void *(*ring_reserve)(void *ring, u64 size, u64 flags) = (void *)131;
static void (*ring_submit)(void *data, u64 flags) = (void *)132;
static struct tcp_sock *(*tcp_sock_of)(void *sk) = (void *)137;
static long (*loop)(u32 count, void *step, void *context, u64 flags) = (void *)181;

/* Functions of the kernel: Reno is in each kernel with TCP, Cubic in nearly all. */
extern u32 tcp_reno_ssthresh(struct sock *sk) __attribute__((section(".ksyms")));
extern u32 tcp_reno_undo_cwnd(struct sock *sk) __attribute__((section(".ksyms")));
extern void tcp_reno_cong_avoid(struct sock *sk, u32 ack, u32 acked) __attribute__((section(".ksyms")));
extern void cubictcp_init(struct sock *sk) OF_KERNEL_OR_NONE;
extern u32 cubictcp_recalc_ssthresh(struct sock *sk) OF_KERNEL_OR_NONE;
extern void cubictcp_cong_avoid(struct sock *sk, u32 ack, u32 acked) OF_KERNEL_OR_NONE;
extern void cubictcp_state(struct sock *sk, u8 state) OF_KERNEL_OR_NONE;
extern void cubictcp_cwnd_event(struct sock *sk, enum tcp_ca_event event) OF_KERNEL_OR_NONE;
extern void cubictcp_acked(struct sock *sk, const struct ack_sample *sample) OF_KERNEL_OR_NONE;
