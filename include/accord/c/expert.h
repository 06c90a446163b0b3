/* Expert parallelism. Included by accord.h. */
#ifndef ACCORD_C_EXPERT_H_
#define ACCORD_C_EXPERT_H_

#include <stddef.h>
#include <stdint.h>

#include "accord/c/communicator.h"
#include "accord/c/status.h"
#include "accord/c/types.h"
#include "accord/c/window.h"

/* NOLINTBEGIN(modernize-use-using, readability-identifier-naming): typedefs and names are those of C. */

#ifdef __cplusplus
extern "C" {
#endif

/* Ranks that share a set of experts. Tokens are sent to the ranks that hold the experts they chose, and the experts'
 * results are sent back. docs/expert-parallelism.md has the mathematics and the order of slots and sums. All ranks
 * make the same calls in the same order, one at a time on each rank. An invalid argument on one rank is an error on
 * all ranks, which names that rank and leaves the group usable. Exceptions: a null handle, and on GPUs any invalid
 * argument, is reported to the calling rank alone. */
typedef struct accord_expert_group accord_expert_group_t;

/* A routing map: the destination of each choice of each token. Use one for each layer and microbatch in flight. It
 * may be prepared again once its last backward is done. */
typedef struct accord_expert_handle accord_expert_handle_t;

/* What happens to a rank's rows when it is sent more than its capacity. */
typedef int32_t accord_overflow_policy_t;

enum {
  ACCORD_OVERFLOW_FAIL = 0, /* prepare fails on all ranks before any data is moved */
  /* Drops the rows with the lowest router weight; of equal weights, the last by (rank, token, k). */
  ACCORD_OVERFLOW_DROP_BY_WEIGHT = 1,
  ACCORD_OVERFLOW_DROP_BY_SLOT = 2 /* drops the rows whose slot is beyond the capacity */
};

/* How rows are transferred. All results are bit-identical for all algorithms. */
typedef int32_t accord_expert_algorithm_t;

enum {
  ACCORD_EXPERT_AUTO = 0,        /* direct if all ranks share memory, else hierarchical, or all_to_all on GPUs */
  ACCORD_EXPERT_DIRECT = 1,      /* ranks read and write each other's memory */
  ACCORD_EXPERT_ALL_TO_ALL = 2,  /* uses all_to_all_v; each row is sent once to each rank, on GPUs for each choice */
  ACCORD_EXPERT_HIERARCHICAL = 3 /* each row is sent once to each host and distributed there; not on GPUs */
};

/* Must be equal on all ranks, which compare it. */
typedef struct accord_expert_config {
  size_t struct_size;
  int32_t experts;             /* number of experts; global ids are 0 to experts - 1 */
  int32_t top_k;               /* maximum number of choices of a token */
  int32_t hidden;              /* elements of a row */
  int32_t max_tokens_per_rank; /* maximum over all ranks */
  int64_t max_recv_rows;       /* capacity of each rank in rows, padding included; 0: no limit */
  int32_t alignment;           /* each expert's rows are padded to a multiple of it; 0: 1 */
  accord_dtype_t dtype;        /* widest dtype of rows; 0: ACCORD_BFLOAT16 */
  accord_overflow_policy_t overflow;
  accord_expert_algorithm_t algorithm;
  /* Which experts each rank holds: placement_counts[r] global ids for rank r, ascending, rank by rank. An id that is
   * listed several times has replicas. Null: equal consecutive shares. */
  const int32_t* placement;
  const int32_t* placement_counts;
  /* Shared memory of each rank for rows in transit; 0: a twentieth of max_tokens_per_rank * top_k rows, 256 KiB to
   * 8 MiB. */
  size_t staging_bytes;
  int32_t ranks_per_host; /* 0: ranks that share memory form a host; n: n consecutive ones of those form one */
  int32_t reserved;       /* must be 0 */
  /* Where the arrays of all calls are; the same kind of device on all ranks. On a GPU, calls put kernels into their
   * stream and return. docs/expert-parallelism.md lists the differences. */
  accord_device_t device;
  int32_t device_index;
} accord_expert_config_t;

#define ACCORD_EXPERT_CONFIG_INIT \
  { sizeof(accord_expert_config_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL, 0, 0, 0, 0, 0 }

/* Settings that may differ between the handles of a group. Null: those of the group. */
typedef struct accord_expert_layer {
  size_t struct_size;
  int32_t top_k;     /* 0: the group's */
  int32_t alignment; /* 0: the group's */
} accord_expert_layer_t;

#define ACCORD_EXPERT_LAYER_INIT \
  { sizeof(accord_expert_layer_t), 0, 0 }

/* One rank's input to prepare, as known to all ranks. */
typedef struct accord_expert_rank_counts {
  int64_t tokens;
  int64_t out_of_range; /* ids below -1 or beyond the last expert; they count as no choice */
  int64_t duplicates;   /* ids that the token already has at a lower k; they count as no choice */
  int64_t dropped;      /* choices of its tokens dropped because of overflow */
  int64_t recv_rows;    /* rows that it receives, padding included */
  int64_t total_rows;   /* recv_rows without dropping */
} accord_expert_rank_counts_t;

/* One choice of a token. */
typedef struct accord_expert_choice {
  int32_t rank;
  int32_t token;
  int32_t k;
} accord_expert_choice_t;

/* This rank's view of a prepared map. */
typedef struct accord_expert_map {
  size_t struct_size;
  int64_t tokens;     /* of this rank */
  int64_t recv_rows;  /* rows that dispatch writes on this rank */
  int64_t total_rows; /* recv_rows without dropping */
  int64_t dropped;    /* choices of all ranks dropped because of overflow */
  /* Number of the handle's current map; preparing it again for equal ids keeps the number, except on a GPU. */
  uint64_t generation;
  int32_t local_experts;
  int32_t top_k;
  uint64_t fingerprint; /* equal for equal maps of the handle, and equal on all ranks */
} accord_expert_map_t;

#define ACCORD_EXPERT_MAP_INIT \
  { sizeof(accord_expert_map_t), 0, 0, 0, 0, 0, 0, 0, 0 }

/* Totals of a group's calls on this rank so far. */
typedef struct accord_expert_statistics {
  size_t struct_size;
  int64_t calls;
  int64_t rows_sent; /* to other ranks */
  int64_t rows_received;
  int64_t bytes_sent;
  int64_t bytes_received;
  int64_t dropped; /* choices of this rank's tokens */
} accord_expert_statistics_t;

#define ACCORD_EXPERT_STATISTICS_INIT \
  { sizeof(accord_expert_statistics_t), 0, 0, 0, 0, 0, 0 }

/* Collective over `communicator`, which is borrowed: it is neither closed nor used for anything else, and may be
 * freed before the group. ACCORD_INVALID_ARGUMENT names the field, ACCORD_MISMATCH the ranks and the field that
 * differs. */
ACCORD_API accord_status_t accord_expert_group_create(accord_communicator_t* communicator,
                                                      const accord_expert_config_t* config,
                                                      accord_expert_group_t** group);
/* Lets the group exchange buffers in `window`, which belongs to a communicator with the same ranks, without a copy.
 * Collective. */
ACCORD_API accord_status_t accord_expert_group_add_window(accord_expert_group_t* group, accord_window_t* window);
ACCORD_API accord_status_t accord_expert_group_statistics(accord_expert_group_t* group,
                                                          accord_expert_statistics_t* statistics);
/* Fills `count` elements, one for each rank. seconds[r] is how much later than this rank rank r arrived at calls; 0
 * for ranks on other hosts. */
ACCORD_API accord_status_t accord_expert_group_waits(accord_expert_group_t* group, double* seconds, size_t count);
/* Closes the group: later calls return ACCORD_CLOSED. Idempotent; the communicator is unaffected. */
ACCORD_API accord_status_t accord_expert_group_close(accord_expert_group_t* group);
ACCORD_API void accord_expert_group_free(accord_expert_group_t* group);

/* Creates a handle with memory for the largest map. Not collective, but all ranks must create handles in the same
 * order. */
ACCORD_API accord_status_t accord_expert_handle_create(accord_expert_group_t* group, const accord_expert_layer_t* layer,
                                                       accord_expert_handle_t** handle);
ACCORD_API void accord_expert_handle_free(accord_expert_handle_t* handle);
/* The following functions return ACCORD_WRONG_STATE until the handle is prepared. `count` must be the array's
 * length. */
ACCORD_API accord_status_t accord_expert_handle_map(accord_expert_handle_t* handle, accord_expert_map_t* map);
/* [local experts]: rows of each expert, `counts` with padding and `rows` without it. Either may be null. */
ACCORD_API accord_status_t accord_expert_handle_counts(accord_expert_handle_t* handle, int64_t* counts, int64_t* rows,
                                                       size_t count);
/* [ranks]. */
ACCORD_API accord_status_t accord_expert_handle_ranks(accord_expert_handle_t* handle,
                                                      accord_expert_rank_counts_t* ranks, size_t count);
/* [dropped], ascending, of all ranks. */
ACCORD_API accord_status_t accord_expert_handle_dropped(accord_expert_handle_t* handle, accord_expert_choice_t* choices,
                                                        size_t count);
/* [recv_rows]: the choice whose row is in each slot; rank -1 for padding. */
ACCORD_API accord_status_t accord_expert_handle_sources(accord_expert_handle_t* handle, accord_expert_choice_t* choices,
                                                        size_t count);
/* [tokens, top_k]: rank and slot of each choice, -1 where there is none. */
ACCORD_API accord_status_t accord_expert_handle_slots(accord_expert_handle_t* handle, int32_t* ranks, int32_t* slots,
                                                      size_t count);

/* The part of a map that is in GPU memory: valid in a stream after prepare, as long as the handle exists. */
typedef struct accord_expert_device_map {
  size_t struct_size;
  const int64_t* counts; /* [local_experts] */
  /* [5]: recv_rows; 1 if a rank would get more rows than its capacity; 1 if nothing is moved for that reason; ids of
   * this rank that are out of range or duplicates; rows that did not fit into the last call's array of slots. */
  const int64_t* numbers;
  const uint64_t* fingerprint; /* [1]: same as in accord_expert_map_t */
} accord_expert_device_map_t;

#define ACCORD_EXPERT_DEVICE_MAP_INIT \
  { sizeof(accord_expert_device_map_t), NULL, NULL, NULL }

/* Gives null pointers for a handle on the CPU. */
ACCORD_API accord_status_t accord_expert_handle_on_device(accord_expert_handle_t* handle,
                                                          accord_expert_device_map_t* map);
/* On a GPU: waits for the work in `stream`, then copies the map to the host, where the functions above read it. If it
 * has not been called, they do the same for the stream of the last prepare. Fails with ACCORD_RESOURCE_EXHAUSTED in
 * the cases in which prepare does on the CPU, or with ACCORD_ABORTED if the group failed before the map was computed.
 * On the CPU it does nothing. */
ACCORD_API accord_status_t accord_expert_handle_fetch(accord_expert_handle_t* handle, void* stream);

/* The choices of this rank's tokens. */
typedef struct accord_expert_routing {
  size_t struct_size;
  const void* ids;      /* [tokens, top_k]; -1 is no choice */
  const float* weights; /* [tokens, top_k], for ACCORD_OVERFLOW_DROP_BY_WEIGHT, else null */
  int64_t tokens;
  accord_dtype_t ids_dtype; /* ACCORD_INT32 or ACCORD_INT64; 0: ACCORD_INT64 */
  int32_t reserved;         /* must be 0 */
  void* stream;             /* on a GPU: the cudaStream_t that the call is enqueued in; null: the default stream */
} accord_expert_routing_t;

#define ACCORD_EXPERT_ROUTING_INIT \
  { sizeof(accord_expert_routing_t), NULL, NULL, 0, 0, 0, NULL }

/* The arrays of a call; dtypes must be equal on all ranks. The map's `tokens` and `recv_rows` give the lengths of
 * arrays. If recv_capacity is not 0, it is the number of rows that the slot arrays hold; on the CPU, fewer than
 * recv_rows is rejected. Null stands for an omitted array. Weights come in pairs, and so do scales
 * ([rows, ceil(hidden / 128)], for float8 rows). */
typedef struct accord_expert_rows {
  size_t struct_size;
  void* tokens;       /* [tokens, hidden]: the tokens or their result, or the gradient of either */
  void* slots;        /* [recv_rows, hidden] */
  void* weights;      /* [tokens, top_k] */
  void* recv_weights; /* [recv_rows] */
  float* scales;      /* for tokens */
  float* recv_scales; /* for slots */
  int64_t recv_capacity;
  accord_dtype_t dtype;         /* of the rows that are read; required */
  accord_dtype_t result_dtype;  /* of sums; 0: dtype */
  accord_dtype_t weights_dtype; /* ACCORD_FLOAT32 or ACCORD_FLOAT64; 0: ACCORD_FLOAT32 */
  int32_t reserved;             /* must be 0 */
  void* stream; /* as in accord_expert_routing; on a GPU the call waits for the map if recv_capacity is 0 */
} accord_expert_rows_t;

#define ACCORD_EXPERT_ROWS_INIT \
  { sizeof(accord_expert_rows_t), NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 0, NULL }

/* Makes `handle` the map of `routing`. Fails with ACCORD_RESOURCE_EXHAUSTED if a rank would get more rows than its
 * capacity and the policy is to fail; the group stays usable and the handle is not prepared. */
ACCORD_API accord_status_t accord_expert_prepare(accord_expert_group_t* group, accord_expert_handle_t* handle,
                                                 const accord_expert_routing_t* routing);
/* slots[slot] = tokens[t], recv_weights[slot] = weights[t, k]; padding is zero. */
ACCORD_API accord_status_t accord_expert_dispatch(accord_expert_group_t* group, accord_expert_handle_t* handle,
                                                  const accord_expert_rows_t* rows);
/* tokens[t] = sum of slots[slot] over the choices of t, each times its weight if weights are given; zero if there are
 * no choices. */
ACCORD_API accord_status_t accord_expert_combine(accord_expert_group_t* group, accord_expert_handle_t* handle,
                                                 const accord_expert_rows_t* rows);
/* tokens[t] = sum of slots[slot] over the choices of t; weights[t, k] = recv_weights[slot], zero without a choice. */
ACCORD_API accord_status_t accord_expert_dispatch_backward(accord_expert_group_t* group, accord_expert_handle_t* handle,
                                                           const accord_expert_rows_t* rows);
/* slots[slot] = tokens[t]; padding is zero. */
ACCORD_API accord_status_t accord_expert_combine_backward(accord_expert_group_t* group, accord_expert_handle_t* handle,
                                                          const accord_expert_rows_t* rows);

/* Computes a placement of `per_rank` experts for each of `ranks` ranks, replicas included, that evens out the loads
 * of `experts` experts. Writes ranks x per_rank global ids to `placement`. */
ACCORD_API accord_status_t accord_balance_experts(const double* loads, int32_t experts, int32_t ranks, int32_t per_rank,
                                                  int32_t* placement);

#ifdef __cplusplus
}
#endif

/* NOLINTEND(modernize-use-using, readability-identifier-naming) */

#endif /* ACCORD_C_EXPERT_H_ */
