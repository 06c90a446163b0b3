/* Calls. Included by accord.h. */
#ifndef ACCORD_C_CALL_H_
#define ACCORD_C_CALL_H_

#include <stddef.h>
#include <stdint.h>

#include "accord/c/communicator.h"
#include "accord/c/status.h"
#include "accord/c/types.h"

/* NOLINTBEGIN(modernize-use-using, readability-identifier-naming): typedefs and names are those of C. */

#ifdef __cplusplus
extern "C" {
#endif

/* What a call does; the function of the same name describes it. 0 is not a kind. */
typedef int32_t accord_call_kind_t;

enum {
  ACCORD_CALL_BARRIER = 1,
  ACCORD_CALL_BROADCAST = 2,
  ACCORD_CALL_ALL_GATHER = 3,
  ACCORD_CALL_REDUCE_SCATTER = 4,
  ACCORD_CALL_ALL_REDUCE = 5,
  ACCORD_CALL_REDUCE = 6,
  ACCORD_CALL_GATHER = 7,
  ACCORD_CALL_SCATTER = 8,
  ACCORD_CALL_ALL_TO_ALL = 9,
  ACCORD_CALL_SEND = 10,
  ACCORD_CALL_RECV = 11,
  ACCORD_CALL_ALL_GATHER_V = 12,
  ACCORD_CALL_REDUCE_SCATTER_V = 13,
  ACCORD_CALL_GATHER_V = 14,
  ACCORD_CALL_SCATTER_V = 15,
  ACCORD_CALL_ALL_TO_ALL_V = 16
};

/* One call as a value, for accord_run and accord_start. Memory is contiguous and belongs to the caller, who keeps it
 * alive until the call, or its work, is done. */
typedef struct accord_call {
  size_t struct_size;
  accord_call_kind_t kind;
  accord_dtype_t dtype; /* of both buffers; not used by a barrier */
  const void* input;    /* the buffer to read: all kinds but barrier and recv, if this rank has one */
  size_t input_count;   /* elements of all its parts together */
  void* output;         /* the buffer to write: all kinds but barrier and send, if this rank has one */
  size_t output_count;  /* elements of all its parts together */
  accord_op_t op;       /* for reductions */
  int32_t root;         /* broadcast, reduce, gather, scatter */
  int32_t peer;         /* send, recv: the other rank */
  int32_t tag;          /* send, recv: distinguishes messages of one pair of ranks; not negative */
  const void* factor;   /* premul_sum: one element of the dtype, read before the call, or its start, returns */
  /* For the kinds with V: the number of elements of each rank's part, in rank order and without gaps, if this rank
   * has that buffer and the buffer has parts. One count for each rank, read before the call, or its start, returns. */
  const size_t* input_counts;
  const size_t* output_counts;
} accord_call_t;

#define ACCORD_CALL_INIT \
  { sizeof(accord_call_t), 0, 0, NULL, 0, NULL, 0, ACCORD_SUM, 0, 0, 0, NULL, NULL, NULL }

/* Options that may differ from call to call. Null options are the defaults. */
typedef struct accord_call_options {
  size_t struct_size;
  int64_t timeout_ns; /* limit for this call; 0: the communicator's timeout */
  void* stream; /* cudaStream_t that orders access to device memory; null: the default stream; ignored on the CPU */
  accord_device_t device; /* where the call's memory is */
  int32_t device_index;   /* device number */
} accord_call_options_t;

#define ACCORD_CALL_OPTIONS_INIT \
  { sizeof(accord_call_options_t), 0, NULL, ACCORD_CPU, 0 }

/* An operation in progress. It continues by itself, even if its handle or its communicator's handle is freed. */
typedef struct accord_work accord_work_t;

/* Runs `call` and returns when it has ended. */
ACCORD_API accord_status_t accord_run(accord_communicator_t* communicator, const accord_call_t* call,
                                      const accord_call_options_t* options);

/* Starts `call` and returns at once. ACCORD_OK means that there is a work; the work reports the call's outcome,
 * including invalid counts, ranks or addresses. */
ACCORD_API accord_status_t accord_start(accord_communicator_t* communicator, const accord_call_t* call,
                                        const accord_call_options_t* options, accord_work_t** work);

/* Runs `count` calls at once and returns when all have ended, with the status of the first one in the list that
 * failed. Messages to and from any ranks are in flight at the same time, so ranks may list theirs in any order;
 * collectives run in the order of the list. If one call is invalid, none begins. All calls have the struct_size of
 * the first. */
ACCORD_API accord_status_t accord_run_batch(accord_communicator_t* communicator, const accord_call_t* calls,
                                            size_t count, const accord_call_options_t* options);
/* Starts the calls and returns at once. The work ends when all of them have. */
ACCORD_API accord_status_t accord_start_batch(accord_communicator_t* communicator, const accord_call_t* calls,
                                              size_t count, const accord_call_options_t* options, accord_work_t** work);

/* Sets `done` to 1 if the operation has ended, successfully or not, else to 0. Never blocks. */
ACCORD_API accord_status_t accord_work_test(accord_work_t* work, int32_t* done);
/* Blocks until the operation has ended and returns its status. The call's own timeout bounds the wait. */
ACCORD_API accord_status_t accord_work_wait(accord_work_t* work);
/* For a call on a GPU: makes later work in `stream`, a cudaStream_t of that device, wait until the operation has
 * ended; the caller continues immediately. After a failure `stream` waits for kernels of the operation that still use
 * the buffers, and the result is that failure. For a call on the CPU: same as accord_work_wait(). */
ACCORD_API accord_status_t accord_work_block(accord_work_t* work, void* stream);
/* Blocks for at most `timeout_ns`. If the operation is still in progress then, sets `done` to 0 and returns
 * ACCORD_OK; the operation is not canceled. Otherwise sets `done` to 1 and returns the operation's status. */
ACCORD_API accord_status_t accord_work_wait_for(accord_work_t* work, int64_t timeout_ns, int32_t* done);
/* Returns the operation's status; ACCORD_WRONG_STATE while it is in progress. */
ACCORD_API accord_status_t accord_work_status(accord_work_t* work);
/* Calls `callback` once with the operation's status and `context`: immediately if it has ended, else on the thread
 * that ends it, which is often accord's own. Other operations stand still meanwhile, so the callback must be short
 * and must not wait for any of them. Freeing the work does not cancel the callback. */
ACCORD_API accord_status_t accord_work_on_end(accord_work_t* work,
                                              void (*callback)(accord_status_t status, void* context), void* context);
ACCORD_API void accord_work_free(accord_work_t* work);

/* Calls that are checked once and can be run any number of times. Counts, factors and options are read when it is
 * created. The buffers stay with the caller, who keeps them alive as long as it is used. It may be started again
 * before the last start has ended; its calls then run in order. */
typedef struct accord_prepared accord_prepared_t;

/* Prepares one call, or `count` calls that run at once like those of accord_run_batch. All have the struct_size of
 * the first. Fails with ACCORD_INVALID_ARGUMENT if one is invalid. */
ACCORD_API accord_status_t accord_prepare(accord_communicator_t* communicator, const accord_call_t* calls, size_t count,
                                          const accord_call_options_t* options, accord_prepared_t** prepared);
/* Runs the calls and returns when they have ended. Allocates nothing if there is a single call. */
ACCORD_API accord_status_t accord_prepared_run(accord_prepared_t* prepared);
/* Starts the calls. The work ends when all of them have. */
ACCORD_API accord_status_t accord_prepared_start(accord_prepared_t* prepared, accord_work_t** work);
/* Works in progress continue, and keep the communicator's group open until they end. */
ACCORD_API void accord_prepared_free(accord_prepared_t* prepared);

/* The calls by name, each of which returns when it has ended (premul_sum needs accord_run, for its factor). `count`
 * is the number of elements of one part: if a buffer has a part for each rank, one rank's part (the buffer has size x
 * `count` elements), else the whole buffer. A buffer that this rank does not have may be null. */

/* Returns once all ranks have called it. */
ACCORD_API accord_status_t accord_barrier(accord_communicator_t* communicator, const accord_call_options_t* options);
/* Copies the root's `buffer` to all ranks. */
ACCORD_API accord_status_t accord_broadcast(accord_communicator_t* communicator, void* buffer, size_t count,
                                            accord_dtype_t dtype, int32_t root, const accord_call_options_t* options);
/* Gathers the `input` (`count` elements) of all ranks into `output` (size x `count`) in rank order. In place if
 * `input` is this rank's part of `output`. */
ACCORD_API accord_status_t accord_all_gather(accord_communicator_t* communicator, const void* input, void* output,
                                             size_t count, accord_dtype_t dtype, const accord_call_options_t* options);
/* Combines all ranks' `input` (size x `count` elements) and gives part r to rank r in `output` (`count`). Same order
 * and rounding as all_reduce. */
ACCORD_API accord_status_t accord_reduce_scatter(accord_communicator_t* communicator, const void* input, void* output,
                                                 size_t count, accord_dtype_t dtype, accord_op_t op,
                                                 const accord_call_options_t* options);
/* Combines `input` over all ranks in the canonical order: results are bit-identical on all ranks and in every run. In
 * place if `input` and `output` are the same. */
ACCORD_API accord_status_t accord_all_reduce(accord_communicator_t* communicator, const void* input, void* output,
                                             size_t count, accord_dtype_t dtype, accord_op_t op,
                                             const accord_call_options_t* options);
/* Like all_reduce, but only `root` gets the result. */
ACCORD_API accord_status_t accord_reduce(accord_communicator_t* communicator, const void* input, void* output,
                                         size_t count, accord_dtype_t dtype, accord_op_t op, int32_t root,
                                         const accord_call_options_t* options);
/* Gathers the `input` (`count` elements) of all ranks into the root's `output` (size x `count`) in rank order. */
ACCORD_API accord_status_t accord_gather(accord_communicator_t* communicator, const void* input, void* output,
                                         size_t count, accord_dtype_t dtype, int32_t root,
                                         const accord_call_options_t* options);
/* Gives part r of the root's `input` (size x `count` elements) to rank r in `output` (`count`). */
ACCORD_API accord_status_t accord_scatter(accord_communicator_t* communicator, const void* input, void* output,
                                          size_t count, accord_dtype_t dtype, int32_t root,
                                          const accord_call_options_t* options);
/* Moves part p of rank r's `input` to part r of rank p's `output`; both have size x `count` elements. In place if
 * they are the same. */
ACCORD_API accord_status_t accord_all_to_all(accord_communicator_t* communicator, const void* input, void* output,
                                             size_t count, accord_dtype_t dtype, const accord_call_options_t* options);
/* The same calls with parts of unequal counts, which may be zero: rank r's part has `counts[r]` elements. */

/* `counts`: of the parts of `output`, equal on all ranks. `input` has this rank's count. */
ACCORD_API accord_status_t accord_all_gather_v(accord_communicator_t* communicator, const void* input, void* output,
                                               const size_t* counts, accord_dtype_t dtype,
                                               const accord_call_options_t* options);
/* `counts`: of the parts of `input`, equal on all ranks. `output` has this rank's count. */
ACCORD_API accord_status_t accord_reduce_scatter_v(accord_communicator_t* communicator, const void* input, void* output,
                                                   const size_t* counts, accord_dtype_t dtype, accord_op_t op,
                                                   const accord_call_options_t* options);
/* `counts`: of the parts of `output`, used only at the root. Each rank passes the number of elements of its `input`. */
ACCORD_API accord_status_t accord_gather_v(accord_communicator_t* communicator, const void* input, size_t input_count,
                                           void* output, const size_t* counts, accord_dtype_t dtype, int32_t root,
                                           const accord_call_options_t* options);
/* `counts`: of the parts of `input`, used only at the root. Each rank passes the number of elements of its `output`. */
ACCORD_API accord_status_t accord_scatter_v(accord_communicator_t* communicator, const void* input,
                                            const size_t* counts, void* output, size_t output_count,
                                            accord_dtype_t dtype, int32_t root, const accord_call_options_t* options);
/* Sends `input_counts[p]` elements to rank p and receives `output_counts[p]` elements from it. */
ACCORD_API accord_status_t accord_all_to_all_v(accord_communicator_t* communicator, const void* input,
                                               const size_t* input_counts, void* output, const size_t* output_counts,
                                               accord_dtype_t dtype, const accord_call_options_t* options);
/* Sends `buffer` to rank `to`, which must call recv with the same count and dtype. Returns when the buffer may be
 * reused. These two functions use tag 0; use accord_run and accord_start for messages with another tag. */
ACCORD_API accord_status_t accord_send(accord_communicator_t* communicator, const void* buffer, size_t count,
                                       accord_dtype_t dtype, int32_t to, const accord_call_options_t* options);
ACCORD_API accord_status_t accord_recv(accord_communicator_t* communicator, void* buffer, size_t count,
                                       accord_dtype_t dtype, int32_t from, const accord_call_options_t* options);
/* Receives the next message with that tag from any rank, and writes the sender's rank to `source`. Ranks are served
 * round-robin. Earlier receives from one particular rank get its messages first. */
ACCORD_API accord_status_t accord_recv_any(accord_communicator_t* communicator, void* buffer, size_t count,
                                           accord_dtype_t dtype, int32_t tag, const accord_call_options_t* options,
                                           int32_t* source);

#ifdef __cplusplus
}
#endif

/* NOLINTEND(modernize-use-using, readability-identifier-naming) */

#endif /* ACCORD_C_CALL_H_ */
