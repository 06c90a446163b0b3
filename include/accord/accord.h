/* The C interface of accord.
 *
 * Every build exports every function of this header under the same symbol. A function that the build or the machine
 * does not support returns ACCORD_UNSUPPORTED. Functions return an accord_status_t: ACCORD_OK, or the reason for the
 * failure. After a failure, accord_last_error() has the message and accord_last_error_ranks() the ranks at fault. Any
 * thread may call any function. Strings are UTF-8 and null-terminated; accord owns the strings that it returns and
 * copies those that it is passed.
 *
 * Objects are handles. A function that creates one returns it through its last argument (null if it fails), and the
 * matching _free function releases it. Handles may be freed in any order, and freeing null is allowed. Freeing a
 * handle never waits for another rank and does not disturb any operation that it refers to. No other thread may be
 * inside a call with a handle while it is being freed.
 *
 * A struct begins with its struct_size, which its _INIT macro sets; 0 in any other field selects the default. Structs
 * grow only at their end. A struct_size of 0, or smaller than that of the first version, is rejected. A struct_size
 * larger than this library knows is rejected unless the extra bytes are zero, so a program may use a newer header
 * than its library as long as it requests nothing new.
 *
 * Times are in nanoseconds. docs/c.md is the guide. */
#ifndef ACCORD_ACCORD_H_
#define ACCORD_ACCORD_H_

#include <stddef.h>
#include <stdint.h>

/* NOLINTBEGIN(modernize-use-using, readability-identifier-naming): typedefs and names are those of C. */

#define ACCORD_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t accord_status_t;

enum {
  ACCORD_OK = 0,
  ACCORD_INVALID_ARGUMENT = 1,    /* the caller passed something without meaning */
  ACCORD_UNSUPPORTED = 2,         /* meaningful, but this build, machine or version cannot do it */
  ACCORD_NOT_FOUND = 3,           /* a key, file, name or device does not exist */
  ACCORD_MISMATCH = 4,            /* ranks disagree about a call, a package or a plan */
  ACCORD_PEER_LOST = 5,           /* a rank died or closed its communicator */
  ACCORD_TIMEOUT = 6,             /* a rank did not arrive in time */
  ACCORD_ABORTED = 7,             /* abort was called */
  ACCORD_CLOSED = 8,              /* used after close */
  ACCORD_CORRUPT = 9,             /* data is damaged or malformed */
  ACCORD_IO = 10,                 /* the operating system refused */
  ACCORD_RESOURCE_EXHAUSTED = 11, /* out of memory, descriptors or space */
  ACCORD_WRONG_STATE = 12,        /* the object's state does not allow the call */
  ACCORD_INTERNAL = 13            /* a defect of accord */
};

/* Returns the library's version, "0.1.0". */
ACCORD_API const char* accord_version(void);

/* Returns the status's name, such as "peer_lost"; "unknown" for any other number. */
ACCORD_API const char* accord_status_name(accord_status_t status);

/* Returns the message of this thread's last failed call, "" if none has failed. Valid until the thread's next failing
 * call. */
ACCORD_API const char* accord_last_error(void);

/* Returns the ranks at fault in that failure, as ranks of the communicator whose call failed. `count` receives their
 * number, 0 if none is known. Valid until the thread's next failing call. */
ACCORD_API const int32_t* accord_last_error_ranks(size_t* count);

/* Returns ACCORD_OK if the named feature ("shm", "ucx", "cuda", "nccl", ...; see accord_info_json) is available,
 * ACCORD_UNSUPPORTED with the reason in accord_last_error() if it is not, and ACCORD_INVALID_ARGUMENT if no build has
 * a feature of that name. */
ACCORD_API accord_status_t accord_check_feature(const char* name);

/* Writes the output of `accord info --json`, null-terminated, to `buffer` of `size` bytes. `needed`, if not null,
 * receives the number of bytes required. If `buffer` is too small, nothing is written and the function returns
 * ACCORD_RESOURCE_EXHAUSTED. A null buffer with size 0 only queries `needed` and returns ACCORD_OK. */
ACCORD_API accord_status_t accord_info_json(char* buffer, size_t size, size_t* needed);

/* ---- Element types, operations and devices -------------------------------------------------------------------- */

/* Element types. 0 is not a type: a call must name one. */
typedef int32_t accord_dtype_t;

enum {
  ACCORD_INT8 = 1,
  ACCORD_INT16 = 2,
  ACCORD_INT32 = 3,
  ACCORD_INT64 = 4,
  ACCORD_UINT8 = 5,
  ACCORD_UINT16 = 6,
  ACCORD_UINT32 = 7,
  ACCORD_UINT64 = 8,
  ACCORD_FLOAT16 = 9,
  ACCORD_BFLOAT16 = 10,
  ACCORD_FLOAT32 = 11,
  ACCORD_FLOAT64 = 12,
  ACCORD_FLOAT8_E4M3FN = 13,
  ACCORD_FLOAT8_E5M2 = 14,
  ACCORD_COMPLEX64 = 15,
  ACCORD_COMPLEX128 = 16,
  ACCORD_BOOL = 17
};

/* Returns the dtype's name, such as "float32"; "unknown" for any other number. */
ACCORD_API const char* accord_dtype_name(accord_dtype_t dtype);
/* Returns the bytes of one element; 0 for any other number. */
ACCORD_API size_t accord_dtype_size(accord_dtype_t dtype);

/* How a reduction combines the values of several ranks. docs/communicator.md lists the effect of each op on each
 * dtype. */
typedef int32_t accord_op_t;

enum {
  ACCORD_SUM = 0,
  ACCORD_PRODUCT = 1,
  ACCORD_MIN = 2,
  ACCORD_MAX = 3,
  ACCORD_BAND = 4, /* bitwise and */
  ACCORD_BOR = 5,
  ACCORD_BXOR = 6,
  ACCORD_AVG = 7,       /* the sum divided by the number of ranks, rounded once after the division */
  ACCORD_PREMUL_SUM = 8 /* the sum of the inputs, each multiplied by its rank's own factor; see accord_call */
};

/* The kind of device on which memory is located. */
typedef int32_t accord_device_t;

enum { ACCORD_CPU = 0, ACCORD_CUDA = 1 };

/* ---- Stores: how ranks that do not know each other yet meet --------------------------------------------------- */

/* A key-value store that all ranks of a job can reach. Values are at most 8 MiB of bytes, keys at most 4 KiB of text.
 * A communicator needs its store only while it is being created. */
typedef struct accord_store accord_store_t;

/* Creates a store in memory, for ranks that are threads; all of them use this one handle. */
ACCORD_API accord_status_t accord_memory_store_create(accord_store_t** store);

/* Creates a store in the directory `path` (created if absent) of a file system that all ranks share. Nothing is
 * removed when the store is freed. */
ACCORD_API accord_status_t accord_file_store_create(const char* path, accord_store_t** store);

typedef int32_t accord_store_role_t;

enum {
  ACCORD_STORE_CLIENT = 0, /* retries the connection until the timeout */
  ACCORD_STORE_HOST = 1    /* serves the store from a thread until its handle is freed; also acts as a client */
};

typedef struct accord_tcp_store_options {
  size_t struct_size;
  const char* host;         /* name or address of the host; null: "127.0.0.1" */
  int32_t port;             /* 0 selects a free port on the host, see accord_store_describe */
  accord_store_role_t role; /* one rank is the host; it frees the store once all others have met */
  int64_t timeout_ns;       /* for the connection; 0: 5 minutes */
} accord_tcp_store_options_t;

#define ACCORD_TCP_STORE_OPTIONS_INIT \
  { sizeof(accord_tcp_store_options_t), NULL, 0, ACCORD_STORE_CLIENT, 0 }

ACCORD_API accord_status_t accord_tcp_store_create(const accord_tcp_store_options_t* options, accord_store_t** store);

/* Creates a view of `parent` in which key "k" is key `prefix`/k of the parent. The view keeps the parent's store
 * alive, but not its handle. */
ACCORD_API accord_status_t accord_prefix_store_create(accord_store_t* parent, const char* prefix,
                                                      accord_store_t** store);

/* Sets `key` to the `size` bytes of `value`, overwriting any earlier value, and wakes every rank that waits for the
 * key. */
ACCORD_API accord_status_t accord_store_set(accord_store_t* store, const char* key, const void* value, size_t size);

/* Waits at most `timeout_ns` until `key` is set, and writes its value to `buffer` of `size` bytes. `needed`, if not
 * null, receives the value's size. If `buffer` is too small, nothing is written and the function returns
 * ACCORD_RESOURCE_EXHAUSTED. */
ACCORD_API accord_status_t accord_store_get(accord_store_t* store, const char* key, int64_t timeout_ns, void* buffer,
                                            size_t size, size_t* needed);

/* Atomically adds `delta` to the decimal number at `key`; an absent key counts as 0. `sum`, if not null, receives the
 * sum. */
ACCORD_API accord_status_t accord_store_add(accord_store_t* store, const char* key, int64_t delta, int64_t* sum);

/* Removes `key` if it exists. */
ACCORD_API accord_status_t accord_store_erase(accord_store_t* store, const char* key);

/* Returns the store's address: "tcp://10.0.0.1:29500", "file://DIRECTORY" or "memory". Valid as long as the handle. */
ACCORD_API accord_status_t accord_store_describe(accord_store_t* store, const char** description);

ACCORD_API void accord_store_free(accord_store_t* store);

/* ---- Communicators -------------------------------------------------------------------------------------------- */

/* A group of ranks that compute together. Calls on one communicator run in the order in which they were made; calls
 * on different communicators are independent. The first failure (a dead peer, a timeout, a mismatch between ranks,
 * abort) ends every pending and later call with its status and names the ranks at fault. Nothing hangs: each call
 * ends within its timeout, and within a second of a peer's death. */
typedef struct accord_communicator accord_communicator_t;

typedef struct accord_communicator_options {
  size_t struct_size;
  const char* name;      /* appears in every error; equal on all ranks; null: "world" */
  int64_t timeout_ns;    /* for creation and for each call; 0: the variable ACCORD_TIMEOUT, or 5 minutes */
  const char* transport; /* "auto", "inproc", "shm" or "ucx"; null: the variable ACCORD_TRANSPORT, or "auto" */
  const char* select;    /* rules for selecting plans, after those of ACCORD_SELECT; docs/architecture.md; null: none */
  const char* hints; /* "wait=yield,slot_bytes=64k", see docs/communicator.md; null: the variables ACCORD_WAIT, ... */
} accord_communicator_options_t;

#define ACCORD_COMMUNICATOR_OPTIONS_INIT \
  { sizeof(accord_communicator_options_t), NULL, 0, NULL, NULL, NULL }

/* Joins, as rank `rank` of `size`, the group that meets in `store` under the options' name. Returns once all ranks
 * have arrived. Null options are the defaults. Fails with ACCORD_TIMEOUT, which names the missing ranks, or with
 * ACCORD_MISMATCH if ranks disagree on the size or options. */
ACCORD_API accord_status_t accord_communicator_create(accord_store_t* store, int32_t rank, int32_t size,
                                                      const accord_communicator_options_t* options,
                                                      accord_communicator_t** communicator);

/* Does the same from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (set by accord run, by torchrun or by hand), or
 * else from the variables of Open MPI, PMI or Slurm. Without any of them, creates a group of one rank. */
ACCORD_API accord_status_t accord_communicator_from_environment(const accord_communicator_options_t* options,
                                                                accord_communicator_t** communicator);

/* Creates a new communicator for each set of ranks with the same `color`, ordered by (`key`, rank). All ranks of this
 * communicator must call it; a rank with a negative color joins none and gets null. A null name stands for this
 * communicator's name, "/" and the color. The new communicator is independent of this one. */
ACCORD_API accord_status_t accord_communicator_split(accord_communicator_t* communicator, int32_t color, int32_t key,
                                                     const char* name, accord_communicator_t** part);

/* Creates a new communicator of the `count` listed ranks, in the order of the list, which must be equal on all of
 * them. Only the listed ranks call it, and neither the order of calls on this communicator nor its messages are
 * affected. Groups that are created at the same time and have two or more ranks in common need different names. A
 * count of 0 gives null. Null options, and fields that are left at their default, are inherited from this
 * communicator; a null name stands for this communicator's name and the list ("world/0,2"). Fails with
 * ACCORD_INVALID_ARGUMENT if the list lacks this rank, repeats a rank or contains an invalid one. ACCORD_MISMATCH,
 * ACCORD_TIMEOUT and ACCORD_PEER_LOST name the ranks that have a different list or different rules, did not call, or
 * were rejected or died. After a failure the ranks may try again. */
ACCORD_API accord_status_t accord_communicator_split_ranks(accord_communicator_t* communicator, const int32_t* ranks,
                                                           size_t count, const accord_communicator_options_t* options,
                                                           accord_communicator_t** part);

/* Creates a new communicator of this one's ranks and `added` more ranks, which call accord_communicator_join with the
 * same store and name. The old ranks keep their ranks; the new ones follow in the order of their arrival. All ranks
 * of this communicator must call it; this communicator itself is unaffected. A null name stands for this one's name
 * and "/grown". ACCORD_TIMEOUT names the ranks that did not arrive, ACCORD_PEER_LOST those that were rejected or
 * died. */
ACCORD_API accord_status_t accord_communicator_grow(accord_communicator_t* communicator, accord_store_t* store,
                                                    int32_t added, const accord_communicator_options_t* options,
                                                    accord_communicator_t** grown);

/* Waits until a communicator grows to the options' name in `store`, and joins it. Fails with ACCORD_PEER_LOST if its
 * ranks gave up. */
ACCORD_API accord_status_t accord_communicator_join(accord_store_t* store, const accord_communicator_options_t* options,
                                                    accord_communicator_t** communicator);

/* Creates a new communicator of the remaining ranks, in the order of their ranks; this one stays as it is. Each
 * remaining rank calls it once. Ranks that have died or closed are left out immediately. A live rank that has not
 * called within `timeout_ns` (0: the communicator's timeout) is left out then, and gets ACCORD_ABORTED when it does
 * call. A null name stands for this one's name and "/shrunk". */
ACCORD_API accord_status_t accord_communicator_shrink(accord_communicator_t* communicator, const char* name,
                                                      int64_t timeout_ns, accord_communicator_t** rest);

ACCORD_API accord_status_t accord_communicator_rank(accord_communicator_t* communicator, int32_t* rank);
ACCORD_API accord_status_t accord_communicator_size(accord_communicator_t* communicator, int32_t* size);
/* The name is valid as long as the handle. */
ACCORD_API accord_status_t accord_communicator_name(accord_communicator_t* communicator, const char** name);

typedef int32_t accord_state_t;

enum { ACCORD_STATE_READY = 0, ACCORD_STATE_FAILED = 1, ACCORD_STATE_CLOSED = 2 };

ACCORD_API accord_status_t accord_communicator_state(accord_communicator_t* communicator, accord_state_t* state);

/* Returns ACCORD_OK when ready, or the reason why the communicator failed or was closed. */
ACCORD_API accord_status_t accord_communicator_status(accord_communicator_t* communicator);

/* Ends every pending and later call on all ranks with ACCORD_ABORTED and `reason` (null: no reason given). May be
 * called from any thread. */
ACCORD_API accord_status_t accord_communicator_abort(accord_communicator_t* communicator, const char* reason);

/* Leaves the group: later calls return ACCORD_CLOSED, and a peer that waits for this rank gets ACCORD_PEER_LOST.
 * Idempotent. */
ACCORD_API accord_status_t accord_communicator_close(accord_communicator_t* communicator);

/* Writes the contents of the flight recorder (this rank's last calls and those in progress) to a file in `directory`,
 * which is created if absent. `accord diagnose` reads the files of all ranks; see docs/diagnose.md. May be called
 * from any thread at any time. */
ACCORD_API accord_status_t accord_communicator_dump(accord_communicator_t* communicator, const char* directory);

/* Releases the handle. The group closes once its works have ended as well. */
ACCORD_API void accord_communicator_free(accord_communicator_t* communicator);

/* ---- Windows -------------------------------------------------------------------------------------------------- */

/* Memory that the ranks of a communicator share: by address where the transport maps it, by put and get everywhere.
 * Calls whose buffers are in windows need no intermediate copy. The program must order conflicting accesses by
 * signals or a barrier. docs/windows.md is the guide. */
typedef struct accord_window accord_window_t;

/* Creates a window to which this rank contributes `bytes` of zeroed memory. Ranks may contribute different amounts,
 * including 0. Collective: all ranks get the window, or none does. A `timeout_ns` of 0 means the communicator's
 * timeout. The window keeps the communicator's group open. */
ACCORD_API accord_status_t accord_window_create(accord_communicator_t* communicator, size_t bytes, int64_t timeout_ns,
                                                accord_window_t** window);
/* Returns this rank's memory, aligned to a page; valid as long as the handle. Either result may be null. */
ACCORD_API accord_status_t accord_window_local(accord_window_t* window, void** memory, size_t* bytes);
/* Returns the memory of `rank` in this address space; null if the transport does not map it or if it has no bytes.
 * Valid as long as the handle, even after the peer's death. */
ACCORD_API accord_status_t accord_window_peer(accord_window_t* window, int32_t rank, void** memory, size_t* bytes);

/* Copies `bytes` to `offset` in the memory of rank `to`. The data is visible to a rank that waits for a later signal
 * from this rank. Between hosts puts, gets and signals wait while too much data is in flight, at most for the
 * communicator's timeout; ACCORD_TIMEOUT then names the rank. */
ACCORD_API accord_status_t accord_window_put(accord_window_t* window, const void* source, size_t bytes, int32_t to,
                                             size_t offset);
/* Copies `bytes` from `offset` in the memory of rank `from`. */
ACCORD_API accord_status_t accord_window_get(accord_window_t* window, void* destination, size_t bytes, int32_t from,
                                             size_t offset);
/* Sends one signal to rank `to`. Signals are counted. */
ACCORD_API accord_status_t accord_window_signal(accord_window_t* window, int32_t to);
/* Waits for one signal from rank `from` that no wait has consumed yet, and consumes it. A `timeout_ns` of 0 means the
 * communicator's timeout; ACCORD_TIMEOUT has no other effect. Fails if the group fails, or if `from` has freed its
 * handle. */
ACCORD_API accord_status_t accord_window_wait(accord_window_t* window, int32_t from, int64_t timeout_ns);

/* Allocates a piece of this rank's memory, aligned to `alignment` (a power of two, at most 4096; 0: 64). A program
 * that allocates pieces must not use the rest of that memory. Fails with ACCORD_RESOURCE_EXHAUSTED if there is no
 * room. */
ACCORD_API accord_status_t accord_window_allocate(accord_window_t* window, size_t bytes, size_t alignment,
                                                  void** memory);
/* Frees an allocated piece. */
ACCORD_API accord_status_t accord_window_release(accord_window_t* window, void* memory);
/* Releases the handle and all allocated pieces. Peers keep the memory that they have mapped. */
ACCORD_API void accord_window_free(accord_window_t* window);

/* ---- GPU memory and NCCL communicators ------------------------------------------------------------------------ */

/* GPU memory of one rank that is registered with all ranks of a communicator; every rank registers the same size.
 * Calls on buffers in it copy less, depending on its use, and give the same results. See docs/gpu.md. */
typedef struct accord_device_window accord_device_window_t;

typedef int32_t accord_window_use_t;
enum {
  ACCORD_WINDOW_PLAIN = 0,      /* like any other memory: this NCCL is too old to register it */
  ACCORD_WINDOW_REGISTERED = 1, /* each rank's NCCL knows this rank's memory */
  ACCORD_WINDOW_SYMMETRIC = 2   /* kernels read and write the memory of other ranks */
};

/* Registers `bytes` at `memory` on the given device; the memory must outlive the window. If `memory` is null, the
 * window allocates it, aligned to 4096 bytes and not zeroed. Collective; it connects the ranks as the first call on a
 * GPU does, and all ranks get the window or none does. A `timeout_ns` of 0 means the communicator's timeout. The
 * window keeps the communicator's group open. */
ACCORD_API accord_status_t accord_device_window_create(accord_communicator_t* communicator, void* memory, size_t bytes,
                                                       accord_device_t device, int32_t device_index, int64_t timeout_ns,
                                                       accord_device_window_t** window);
/* The memory is valid as long as the handle. Any result may be null. */
ACCORD_API accord_status_t accord_device_window_memory(accord_device_window_t* window, void** memory, size_t* bytes,
                                                       accord_window_use_t* use);
/* Releases the handle. The memory is deregistered, and freed if the window allocated it. No call that uses it may
 * still be in a stream. */
ACCORD_API void accord_device_window_free(accord_device_window_t* window);

/* Makes `communicator` use an existing ncclComm_t, over the same ranks in the same order, for its calls on GPUs. Must
 * be called on all ranks, before the first such call. The ncclComm_t still belongs to its owner: it must outlive
 * `communicator`, which never destroys or aborts it. */
ACCORD_API accord_status_t accord_communicator_lend_nccl(accord_communicator_t* communicator, void* nccl_communicator);

/* ---- Calls ---------------------------------------------------------------------------------------------------- */

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
 * ended; the caller continues immediately. For a call on the CPU: same as accord_work_wait(). */
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

/* ---- Counters ------------------------------------------------------------------------------------------------- */

/* Counts of this rank since the communicator was created; written by accord_communicator_counters. */
typedef struct accord_counters {
  size_t struct_size;
  uint64_t failures; /* calls that began, or were queued, and failed */
  uint64_t waits;    /* calls that waited for other ranks long enough (tens of microseconds) to check for failures */
  uint64_t queued;   /* calls that were queued behind others, plus all calls that were started or run in a batch */
} accord_counters_t;

#define ACCORD_COUNTERS_INIT \
  { sizeof(accord_counters_t), 0, 0, 0 }

/* Fills in `counters`, of which the caller sets only the struct_size. Fields that this library does not know are set
 * to 0. */
ACCORD_API accord_status_t accord_communicator_counters(accord_communicator_t* communicator,
                                                        accord_counters_t* counters);

/* Returns how many calls of that kind have begun, and the bytes of their buffers: of one part where a buffer is
 * divided among the ranks, and of the larger of the two buffers where parts differ. Sends and receives are counted
 * together, and so are the forms of a call with and without V. Either result may be null. */
ACCORD_API accord_status_t accord_communicator_counters_of(accord_communicator_t* communicator, accord_call_kind_t kind,
                                                           uint64_t* calls, uint64_t* bytes);

/* ---- User-defined plans --------------------------------------------------------------------------------------- */

/* How a plan is registered. Null options are the defaults. */
typedef struct accord_plan_options {
  size_t struct_size;
  const char* name;  /* name in selection tables; null: the plan's own name */
  const char* bytes; /* "0-4k": serves calls of these sizes even if no table names it; null: only by name */
} accord_plan_options_t;

#define ACCORD_PLAN_OPTIONS_INIT \
  { sizeof(accord_plan_options_t), NULL, NULL }

/* Registers the plan in `json` (docs/plan-format.md) for all communicators of this process, including existing ones.
 * Selection tables may then name it, as in ACCORD_SELECT="all_reduce:0-4k=my_plan"; with `bytes` it has precedence
 * over the default table. All ranks need the same plans before any of them makes a call that they serve; otherwise
 * that call ends with ACCORD_MISMATCH. Registering the same plan again does nothing. Fails with ACCORD_CORRUPT if
 * `json` is not a plan, or ACCORD_INVALID_ARGUMENT if verification fails (the error names the step) or the name is
 * taken. Cost: the verification, milliseconds; seconds for many ranks and steps. docs/plans.md is the guide. */
ACCORD_API accord_status_t accord_register_plan(const char* json, const accord_plan_options_t* options);
/* Registers the plan in the file `path`. Errors name the file. */
ACCORD_API accord_status_t accord_register_plan_file(const char* path, const accord_plan_options_t* options);

/* ---- Expert parallelism --------------------------------------------------------------------------------------- */

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
  ACCORD_EXPERT_AUTO = 0,        /* direct if all ranks share memory, else hierarchical */
  ACCORD_EXPERT_DIRECT = 1,      /* ranks read and write each other's memory */
  ACCORD_EXPERT_ALL_TO_ALL = 2,  /* uses all_to_all_v; each row is sent once to each rank that needs it */
  ACCORD_EXPERT_HIERARCHICAL = 3 /* each row is sent once to each host that needs it, and distributed there */
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

/* ---- Engines -------------------------------------------------------------------------------------------------- */

/* A compiled model with its collectives inside, loaded for this rank. docs/engine-format.md describes its package. */
typedef struct accord_engine accord_engine_t;

/* A group that shares a package, and the communicator it is bound to. The name is that of one of the package's
 * logical groups ("tp"); or "pp" for the stages of a pipeline, or "dp" for replicas that share a batch, over which
 * any package can be loaded. */
typedef struct accord_engine_group {
  const char* name;
  accord_communicator_t* communicator;
} accord_engine_group_t;

/* How an engine is loaded. Null options are the defaults. */
typedef struct accord_engine_options {
  size_t struct_size;
  uint64_t memory_limit; /* bytes that this rank's weights, arenas and caches may use together; 0: no limit */
  int32_t threads;       /* compute threads; 0: ACCORD_THREADS */
  /* A power of two: outputs are bit-identical on any number of ranks that divides it; 0: off. */
  int32_t canonical_ranks;
  /* Runs of at least this many rows are computed in two halves, so that the sums over the ranks of one half
   * overlap with the computation of the other; 0: off. Equal on all ranks. */
  int32_t overlap_rows;
  /* ACCORD_INT8: sums over the ranks of 32 KB and more are sent as 8-bit codes; 0: exact. Excludes canonical_ranks
   * and overlap_rows. Equal on all ranks. docs/language-models.md */
  accord_dtype_t all_reduce_dtype;
  /* ACCORD_INT8, on the CPU: the inputs of layers with 8-bit or 4-bit weights are rounded to 8 bits.
   * ACCORD_FLOAT8_E4M3FN, on GPUs: the same for layers with 8-bit float weights. 0: inputs are not rounded. Equal on
   * all ranks. docs/language-models.md, docs/gpu.md */
  accord_dtype_t activation_dtype;
  /* Where the model runs; inputs and outputs are on the CPU in any case. docs/gpu.md */
  accord_device_t device;
  int32_t device_index; /* device number */
  int32_t reserved;     /* must be 0 */
} accord_engine_options_t;

#define ACCORD_ENGINE_OPTIONS_INIT \
  { sizeof(accord_engine_options_t), 0, 0, 0, 0, 0, 0, ACCORD_CPU, 0, 0 }

/* Loads the package at `path` for this rank and binds its groups; a group that is not among the `count` given ones
 * has one rank. Collective over the groups, and agreed: if one rank cannot load, every rank gets its error. Errors
 * are ACCORD_NOT_FOUND; ACCORD_CORRUPT (names file and tensor); ACCORD_UNSUPPORTED (names the op);
 * ACCORD_INVALID_ARGUMENT (more ranks than units to share, an unknown group or one that is listed twice);
 * ACCORD_RESOURCE_EXHAUSTED (more than the limit); and ACCORD_MISMATCH (ranks loaded different packages). */
ACCORD_API accord_status_t accord_engine_load(const char* path, const accord_engine_group_t* groups, size_t count,
                                              const accord_engine_options_t* options, accord_engine_t** engine);
/* Writes a description of the package at `path` as JSON, the same as `accord engine inspect`: inputs, outputs,
 * sharding, bytes. The buffer is handled as in accord_info_json. */
ACCORD_API accord_status_t accord_engine_inspect(const char* path, char* buffer, size_t size, size_t* needed);

/* An input or output: contiguous, row-major, on the CPU. */
typedef struct accord_tensor {
  void* data;
  const int64_t* shape; /* `dimensions` numbers */
  int32_t dimensions;
  accord_dtype_t dtype;
} accord_tensor_t;

/* Runs the engine on `input_count` inputs, in their order, and fills in its `output_count` outputs, which are valid
 * until the engine's next run. Collective: every rank passes equal inputs. One thread at a time.
 * ACCORD_INVALID_ARGUMENT names an input of the wrong dtype or shape, or gives the expected numbers of inputs and
 * outputs. */
ACCORD_API accord_status_t accord_engine_run(accord_engine_t* engine, const accord_tensor_t* inputs, size_t input_count,
                                             accord_tensor_t* outputs, size_t output_count);
/* Releases the handle; a language model that uses the engine is unaffected. */
ACCORD_API void accord_engine_free(accord_engine_t* engine);

/* ---- Language models ------------------------------------------------------------------------------------------ */

/* A language model on all ranks of an engine. Rank 0 takes requests, batches them and samples; the other ranks
 * follow. docs/language-models.md is the guide. */
typedef struct accord_language_model accord_language_model_t;

typedef struct accord_language_model_options {
  size_t struct_size;
  int32_t cache_tokens;       /* capacity of the KV cache in tokens, for all sequences together; 0: one full context */
  int32_t block_tokens;       /* a multiple of 16; 0: 16 */
  accord_dtype_t cache_dtype; /* ACCORD_FLOAT32, ACCORD_BFLOAT16 or ACCORD_INT8; 0: ACCORD_FLOAT32 */
  int32_t max_sequences;      /* sequences that one step computes; 0: 64 */
  int32_t max_rows;           /* tokens that one step computes; 0: 512 */
  int32_t reserved;           /* must be 0 */
} accord_language_model_options_t;

#define ACCORD_LANGUAGE_MODEL_OPTIONS_INIT \
  { sizeof(accord_language_model_options_t), 0, 0, 0, 0, 0, 0 }

/* Creates the cache and, on rank 0, the thread that runs the model. Collective, and agreed. `all_ranks` connects all
 * ranks of an engine that is bound to several groups or to none; otherwise null. Fails with ACCORD_UNSUPPORTED if the
 * package is not a language model. */
ACCORD_API accord_status_t accord_language_model_create(accord_engine_t* engine,
                                                        const accord_language_model_options_t* options,
                                                        accord_communicator_t* all_ranks,
                                                        accord_language_model_t** model);
/* For the other ranks: computes what rank 0 decides, until rank 0 stops (ACCORD_OK) or something fails on any rank. */
ACCORD_API accord_status_t accord_language_model_follow(accord_language_model_t* model);
/* For rank 0: ends all requests and the follow calls of the other ranks. Idempotent. Returns the failure if there was
 * one. */
ACCORD_API accord_status_t accord_language_model_stop(accord_language_model_t* model);
/* On rank 0, stops the model and waits for the step in progress. A stream that has not ended keeps the model alive;
 * the last one then stops it. */
ACCORD_API void accord_language_model_free(accord_language_model_t* model);

/* One turn of a conversation. */
typedef struct accord_message {
  const char* role; /* "system", "user", "assistant" */
  const char* content;
} accord_message_t;

/* A text to continue or a conversation to answer, and how tokens are sampled. Options have the same meaning as in
 * transformers. */
typedef struct accord_text_request {
  size_t struct_size;
  const char* prompt;               /* or null */
  const accord_message_t* messages; /* instead of a prompt; rendered by the package's chat format */
  size_t message_count;
  const char* const* stop; /* texts that end an answer and are not part of it */
  size_t stop_count;
  uint64_t seed;          /* equal seeds give equal tokens, whatever else is computed and on any number of ranks */
  int32_t max_new_tokens; /* 0: as many as fit into the context and the cache */
  int32_t samples;        /* continuations of the same prompt; 0: 1 */
  int32_t priority;       /* [-100, 100], higher ones first */
  int32_t top_k;          /* sample from the k best tokens only; 0: all */
  double temperature;     /* 0: the best token */
  double top_p;           /* sample from the best tokens that together have this probability; 0: all */
  double min_p;           /* sample from tokens with at least this fraction of the best token's probability; 0: all */
  double repetition_penalty; /* divides the logits of tokens already seen; 0: 1 */
} accord_text_request_t;

#define ACCORD_TEXT_REQUEST_INIT \
  { sizeof(accord_text_request_t), NULL, NULL, 0, NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* The text of one request as it arrives. Used by one thread at a time. It keeps its model alive until it has returned
 * its last event. */
typedef struct accord_text_stream accord_text_stream_t;

/* For rank 0: submits a request. Fails with ACCORD_INVALID_ARGUMENT, which names the invalid option; ACCORD_NOT_FOUND
 * if the package has no tokenizer or chat format; ACCORD_RESOURCE_EXHAUSTED if too many requests are waiting; and,
 * once the model has ended, ACCORD_CLOSED after stop or the failure that ended it. */
ACCORD_API accord_status_t accord_language_model_generate(accord_language_model_t* model,
                                                          const accord_text_request_t* request,
                                                          accord_text_stream_t** stream);

typedef int32_t accord_finish_t;

enum {
  ACCORD_FINISH_NONE = 0, /* not finished */
  ACCORD_FINISH_STOP_TOKEN = 1,
  ACCORD_FINISH_STOP_SEQUENCE = 2, /* one of the stop texts */
  ACCORD_FINISH_LENGTH = 3,
  ACCORD_FINISH_CANCELLED = 4,
  ACCORD_FINISH_ERROR = 5 /* accord_text_stream_next returns the error */
};

/* More text of a sample, or its end, or both. */
typedef struct accord_text_event {
  size_t struct_size;
  const char* text;       /* whole characters, valid until the stream's next call; null: all samples have ended */
  int32_t sample;         /* index among the request's samples */
  accord_finish_t finish; /* of the sample */
} accord_text_event_t;

#define ACCORD_TEXT_EVENT_INIT \
  { sizeof(accord_text_event_t), NULL, 0, 0 }

/* Waits at most `timeout_ns` for more text; 0 does not wait. After ACCORD_TIMEOUT it may be called again; any other
 * error has ended a sample. */
ACCORD_API accord_status_t accord_text_stream_next(accord_text_stream_t* stream, int64_t timeout_ns,
                                                   accord_text_event_t* event);
/* Returns the number of tokens in the prompt and of those generated so far in all samples. Either result may be
 * null. */
ACCORD_API accord_status_t accord_text_stream_usage(accord_text_stream_t* stream, int64_t* prompt_tokens,
                                                    int64_t* completion_tokens);
/* Ends the request soon. Text that is available, or arrives until then, is returned first. */
ACCORD_API accord_status_t accord_text_stream_cancel(accord_text_stream_t* stream);
/* Cancels the request if it has not ended. */
ACCORD_API void accord_text_stream_free(accord_text_stream_t* stream);

#ifdef __cplusplus
}
#endif

/* NOLINTEND(modernize-use-using, readability-identifier-naming) */

#endif /* ACCORD_ACCORD_H_ */
