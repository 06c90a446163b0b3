/* The C interface of accord.
 *
 * Every function of this header is in every build, with the same symbol; what a build or machine lacks answers
 * ACCORD_UNSUPPORTED. Functions return an accord_status_t, ACCORD_OK or why not; accord_last_error() then has the message
 * and accord_last_error_ranks() the ranks at fault. Any thread may call any function. Strings are UTF-8 and end with a zero;
 * those that accord returns belong to accord, those that it is given are copied.
 *
 * Objects are handles: a function that makes one gives it through its last argument (null if it fails), and its _free gives
 * it back, in any order, also null. Freeing a handle never waits for another rank, and harms no operation that it stands for.
 * No thread may be inside a call with a handle that is being freed.
 *
 * A struct begins with its struct_size, which its _INIT macro sets; 0 in any other field means the default. Structs grow only
 * at their end. A struct_size that is 0 or smaller than the first version's is refused, and so is a larger one than this
 * library knows, unless the rest is zero: a program may use a newer header than its library as long as it asks for nothing new.
 *
 * Times are in nanoseconds. docs/c.md shows how it is used. */
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
  ACCORD_NOT_FOUND = 3,           /* a key, file, name or device that is not there */
  ACCORD_MISMATCH = 4,            /* ranks disagree: about a call, a package or a plan */
  ACCORD_PEER_LOST = 5,           /* a rank died or closed its communicator */
  ACCORD_TIMEOUT = 6,             /* a rank did not come in time */
  ACCORD_ABORTED = 7,             /* somebody called abort */
  ACCORD_CLOSED = 8,              /* used after close */
  ACCORD_CORRUPT = 9,             /* bytes are not what they should be */
  ACCORD_IO = 10,                 /* the operating system refused */
  ACCORD_RESOURCE_EXHAUSTED = 11, /* memory, descriptors or space ran out */
  ACCORD_WRONG_STATE = 12,        /* the object is not in a state that allows the call */
  ACCORD_INTERNAL = 13            /* a defect of accord */
};

/* The library's version, "0.1.0". */
ACCORD_API const char* accord_version(void);

/* The status's name, "peer_lost"; "unknown" for a number that is none. */
ACCORD_API const char* accord_status_name(accord_status_t status);

/* Why the last call of this thread that failed did so, "" if none has; valid until the thread's next failing call. */
ACCORD_API const char* accord_last_error(void);

/* The ranks at fault for it, as ranks of the communicator whose call failed. `count` gets how many; 0 if none is known.
 * Valid until the thread's next failing call. */
ACCORD_API const int32_t* accord_last_error_ranks(size_t* count);

/* ACCORD_OK if the feature of that name ("shm", "ucx", "cuda", "nccl", ...; see accord_info_json) is available,
 * ACCORD_UNSUPPORTED with the reason in accord_last_error() if not, ACCORD_INVALID_ARGUMENT if no build has one so named. */
ACCORD_API accord_status_t accord_check_feature(const char* name);

/* Writes what `accord info --json` prints, with its final zero, to `buffer` of `size` bytes. `needed`, if not null, gets the
 * bytes that this takes; with a smaller buffer nothing is written and the answer is ACCORD_RESOURCE_EXHAUSTED. A null buffer
 * with size 0 only asks for `needed`, which is ACCORD_OK. */
ACCORD_API accord_status_t accord_info_json(char* buffer, size_t size, size_t* needed);

/* ---- What calls work on ---------------------------------------------------------------------------------------------- */

/* Element types. 0 is none: what a call works on has to be said. */
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

/* "float32"; "unknown" for a number that is none. */
ACCORD_API const char* accord_dtype_name(accord_dtype_t dtype);
/* Bytes of one element; 0 for a number that is none. */
ACCORD_API size_t accord_dtype_size(accord_dtype_t dtype);

/* How values of several ranks become one; docs/communicator.md has the table of what each does to each dtype. */
typedef int32_t accord_op_t;

enum {
  ACCORD_SUM = 0,
  ACCORD_PRODUCT = 1,
  ACCORD_MIN = 2,
  ACCORD_MAX = 3,
  ACCORD_BAND = 4, /* bitwise */
  ACCORD_BOR = 5,
  ACCORD_BXOR = 6,
  ACCORD_AVG = 7,       /* the sum, divided by the number of ranks before it is rounded */
  ACCORD_PREMUL_SUM = 8 /* the sum of inputs that each rank multiplies by its own factor, see accord_call */
};

/* Where memory lies. */
typedef int32_t accord_device_t;

enum { ACCORD_CPU = 0, ACCORD_CUDA = 1 };

/* ---- Stores: how ranks that do not yet know each other meet ---------------------------------------------------------- */

/* A key-value store that all ranks of a job reach. Values are bytes of at most 8 MiB, keys text of at most 4 KiB. A communicator
 * needs its store only while it is made. */
typedef struct accord_store accord_store_t;

/* A store in memory, for ranks that are threads: all of them use this one handle. */
ACCORD_API accord_status_t accord_memory_store_create(accord_store_t** store);

/* A store in the directory `path` (made if absent) of a file system that all ranks see; removes nothing at the end. */
ACCORD_API accord_status_t accord_file_store_create(const char* path, accord_store_t** store);

typedef int32_t accord_store_role_t;

enum {
  ACCORD_STORE_CLIENT = 0, /* retries the connection until the timeout */
  ACCORD_STORE_HOST = 1    /* serves it from a thread until its handle is freed, and is a client too */
};

typedef struct accord_tcp_store_options {
  size_t struct_size;
  const char* host;         /* name or address of the host; null: "127.0.0.1" */
  int32_t port;             /* for the host 0 takes a free one, see accord_store_describe */
  accord_store_role_t role; /* one rank is the host, and frees the store when all others have met */
  int64_t timeout_ns;       /* of the connection; 0: 5 minutes */
} accord_tcp_store_options_t;

#define ACCORD_TCP_STORE_OPTIONS_INIT \
  { sizeof(accord_tcp_store_options_t), NULL, 0, ACCORD_STORE_CLIENT, 0 }

ACCORD_API accord_status_t accord_tcp_store_create(const accord_tcp_store_options_t* options, accord_store_t** store);

/* `parent` seen through a prefix: key "k" is `prefix`/k there. It keeps the parent's store alive, not its handle. */
ACCORD_API accord_status_t accord_prefix_store_create(accord_store_t* parent, const char* prefix,
                                                      accord_store_t** store);

/* Sets `key` to `size` bytes; wakes whoever waits for it. Overwrites. */
ACCORD_API accord_status_t accord_store_set(accord_store_t* store, const char* key, const void* value, size_t size);

/* Waits until `key` is set, at most `timeout_ns`, and writes its value to `buffer` of `size` bytes. `needed`, if not null, gets
 * the value's bytes; with a smaller buffer nothing is written and the answer is ACCORD_RESOURCE_EXHAUSTED. */
ACCORD_API accord_status_t accord_store_get(accord_store_t* store, const char* key, int64_t timeout_ns, void* buffer,
                                            size_t size, size_t* needed);

/* Adds `delta` to the decimal number at `key` (absent counts as 0), at once for all ranks; `sum`, if not null, gets the sum. */
ACCORD_API accord_status_t accord_store_add(accord_store_t* store, const char* key, int64_t delta, int64_t* sum);

/* Removes `key` if it is there. */
ACCORD_API accord_status_t accord_store_erase(accord_store_t* store, const char* key);

/* Where it is, "tcp://10.0.0.1:29500", "file://DIRECTORY" or "memory"; valid as long as the handle. */
ACCORD_API accord_status_t accord_store_describe(accord_store_t* store, const char** description);

ACCORD_API void accord_store_free(accord_store_t* store);

/* ---- Communicators ----------------------------------------------------------------------------------------------------- */

/* A group of ranks that compute together. Calls on one communicator run in the order they were made, calls on different ones
 * are independent. The first failure (a dead peer, a timeout, a mismatch between ranks, abort) ends every pending and later
 * call with its status, and names the ranks at fault. Nothing hangs: each call ends within its timeout, and within a second
 * of a peer's death. */
typedef struct accord_communicator accord_communicator_t;

typedef struct accord_communicator_options {
  size_t struct_size;
  const char* name;      /* in every error; equal on all ranks; null: "world" */
  int64_t timeout_ns;    /* of creation and of each call; 0: the variable ACCORD_TIMEOUT, or 5 minutes */
  const char* transport; /* "auto", "inproc", "shm" or "ucx"; null: the variable ACCORD_TRANSPORT, or "auto" */
  const char* select;    /* overrides the plan selection after ACCORD_SELECT, see docs/architecture.md; null: nothing */
  const char* hints; /* "wait=yield,slot_bytes=64k", see docs/communicator.md; null: the variables ACCORD_WAIT, ... */
} accord_communicator_options_t;

#define ACCORD_COMMUNICATOR_OPTIONS_INIT \
  { sizeof(accord_communicator_options_t), NULL, 0, NULL, NULL, NULL }

/* Joins rank `rank` of `size` that meet in `store` under the options' name. Returns when all have come. Null options are the
 * defaults. ACCORD_TIMEOUT names the ranks that did not come; ACCORD_MISMATCH if ranks disagree on the size or options. */
ACCORD_API accord_status_t accord_communicator_create(accord_store_t* store, int32_t rank, int32_t size,
                                                      const accord_communicator_options_t* options,
                                                      accord_communicator_t** communicator);

/* The same from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (accord run, torchrun, by hand), else from the variables of
 * Open MPI, PMI or Slurm; without any of them a group of one. */
ACCORD_API accord_status_t accord_communicator_from_environment(const accord_communicator_options_t* options,
                                                                accord_communicator_t** communicator);

/* Ranks with the same `color` form a new communicator, ordered by (`key`, rank). All ranks of this one call it; with a negative
 * color a rank joins none and gets null. A null name is this one's name, "/" and the color. The new one lives on its own. */
ACCORD_API accord_status_t accord_communicator_split(accord_communicator_t* communicator, int32_t color, int32_t key,
                                                     const char* name, accord_communicator_t** part);

/* The `count` listed ranks form a new communicator, in the order of the list, which is equal on all of them. Only they call it, and
 * neither the order of calls on this one nor its messages are touched. Groups that are in the making at the same time and have two
 * ranks or more in common need different names. A count of 0 gives null. Options that are null or left open are this one's; a
 * null name is this one's name and the list ("world/0,2"). ACCORD_INVALID_ARGUMENT: the list lacks this rank, or names one twice
 * or one that there is not; ACCORD_MISMATCH, ACCORD_TIMEOUT and ACCORD_PEER_LOST name the ranks that have another list or other
 * rules, did not call, or were refused or died. After a failure they may try again. */
ACCORD_API accord_status_t accord_communicator_split_ranks(accord_communicator_t* communicator, const int32_t* ranks,
                                                           size_t count, const accord_communicator_options_t* options,
                                                           accord_communicator_t** part);

/* `added` more ranks, which call accord_communicator_join with the same store and name, make a new communicator with the ranks of
 * this one: these keep their ranks, the others follow in the order in which they come. All ranks of this one call it; this one goes
 * on as it is. A null name is this one's name and "/grown". ACCORD_TIMEOUT names the ranks that did not come, ACCORD_PEER_LOST
 * those that were refused or died. */
ACCORD_API accord_status_t accord_communicator_grow(accord_communicator_t* communicator, accord_store_t* store,
                                                    int32_t added, const accord_communicator_options_t* options,
                                                    accord_communicator_t** grown);

/* Waits until a communicator grows to the options' name in `store`, and joins it. ACCORD_PEER_LOST: its ranks gave up. */
ACCORD_API accord_status_t accord_communicator_join(accord_store_t* store, const accord_communicator_options_t* options,
                                                    accord_communicator_t** communicator);

/* The ranks that are left make a new communicator, in the order of their ranks; this one stays as it is. Each of them calls it
 * once. Whoever has died or closed is left out at once; whoever is alive and has not called it after `timeout_ns` (0: the
 * communicator's), then: it gets ACCORD_ABORTED when it does. A null name is this one's name and "/shrunk". */
ACCORD_API accord_status_t accord_communicator_shrink(accord_communicator_t* communicator, const char* name,
                                                      int64_t timeout_ns, accord_communicator_t** rest);

ACCORD_API accord_status_t accord_communicator_rank(accord_communicator_t* communicator, int32_t* rank);
ACCORD_API accord_status_t accord_communicator_size(accord_communicator_t* communicator, int32_t* size);
/* Valid as long as the handle. */
ACCORD_API accord_status_t accord_communicator_name(accord_communicator_t* communicator, const char** name);

typedef int32_t accord_state_t;

enum { ACCORD_STATE_READY = 0, ACCORD_STATE_FAILED = 1, ACCORD_STATE_CLOSED = 2 };

ACCORD_API accord_status_t accord_communicator_state(accord_communicator_t* communicator, accord_state_t* state);

/* ACCORD_OK when ready, else why it failed or was closed. */
ACCORD_API accord_status_t accord_communicator_status(accord_communicator_t* communicator);

/* Ends every pending and later call on all ranks with ACCORD_ABORTED and `reason` (null: none given). From any thread. */
ACCORD_API accord_status_t accord_communicator_abort(accord_communicator_t* communicator, const char* reason);

/* Leaves the group: later calls give ACCORD_CLOSED; a peer that waits for this rank gets ACCORD_PEER_LOST. Idempotent. */
ACCORD_API accord_status_t accord_communicator_close(accord_communicator_t* communicator);

/* Writes what the flight recorder holds (this rank's last calls, and those under way) to a file in `directory`, which is made if
 * absent; `accord diagnose` reads those of all ranks, see docs/diagnose.md. From any thread, at any time. */
ACCORD_API accord_status_t accord_communicator_dump(accord_communicator_t* communicator, const char* directory);

/* Gives the handle back. The group closes when its works have ended too. */
ACCORD_API void accord_communicator_free(accord_communicator_t* communicator);

/* ---- Windows --------------------------------------------------------------------------------------------------------------- */

/* Memory that the ranks of a communicator lend each other: by address where the transport maps it, by put and get everywhere. Calls
 * whose buffers lie in windows copy nothing on the way. Who writes what others read at the same time is for signals, or a barrier,
 * to order. docs/windows.md is the guide. */
typedef struct accord_window accord_window_t;

/* A window to which this rank contributes `bytes`, as many as each likes, 0 too; zeroed. Collective: all ranks get it, or none does.
 * `timeout_ns` 0: the communicator's. It keeps the communicator's group open. */
ACCORD_API accord_status_t accord_window_create(accord_communicator_t* communicator, size_t bytes, int64_t timeout_ns,
                                                accord_window_t** window);
/* This rank's memory, aligned to a page; valid as long as the handle. Either result may be null. */
ACCORD_API accord_status_t accord_window_local(accord_window_t* window, void** memory, size_t* bytes);
/* That of `rank`, in this address space; null if the transport does not map it, or it has no bytes. Valid as long as the handle,
 * also after the peer's death. */
ACCORD_API accord_status_t accord_window_peer(accord_window_t* window, int32_t rank, void** memory, size_t* bytes);

/* Copies `bytes` to `offset` of rank `to`'s memory: there for who waits for a later signal of this rank. Between hosts puts, gets and
 * signals wait while too much is on its way, at most for the communicator's timeout: ACCORD_TIMEOUT names the rank. */
ACCORD_API accord_status_t accord_window_put(accord_window_t* window, const void* source, size_t bytes, int32_t to,
                                             size_t offset);
/* Copies `bytes` from `offset` of rank `from`'s memory. */
ACCORD_API accord_status_t accord_window_get(accord_window_t* window, void* destination, size_t bytes, int32_t from,
                                             size_t offset);
/* Counts one signal to `to`. */
ACCORD_API accord_status_t accord_window_signal(accord_window_t* window, int32_t to);
/* Waits for one signal of `from` that no wait has taken yet, and takes it. `timeout_ns` 0: the communicator's; ACCORD_TIMEOUT harms
 * nothing. A group that fails, and a rank that has freed its handle, end it. */
ACCORD_API accord_status_t accord_window_wait(accord_window_t* window, int32_t from, int64_t timeout_ns);

/* A piece of this rank's memory that nobody else has, at a multiple of `alignment` (a power of two, at most 4096; 0: 64). Who
 * allocates keeps his hands off the rest of it. ACCORD_RESOURCE_EXHAUSTED if there is no room. */
ACCORD_API accord_status_t accord_window_allocate(accord_window_t* window, size_t bytes, size_t alignment,
                                                  void** memory);
/* Gives a piece back. */
ACCORD_API accord_status_t accord_window_release(accord_window_t* window, void* memory);
/* Gives the handle back, and all pieces; peers keep what they see of its memory. */
ACCORD_API void accord_window_free(accord_window_t* window);

/* ---- Memory and communicators of GPUs --------------------------------------------------------------------------------------- */

/* One rank's memory of a GPU that is registered with all ranks of a communicator, equally large on each: calls on buffers in it copy
 * less, as its use says, and give the same results. docs/gpu.md tells more. */
typedef struct accord_device_window accord_device_window_t;

typedef int32_t accord_window_use_t;
enum {
  ACCORD_WINDOW_PLAIN = 0,      /* as any other memory: NCCL is too old to know better */
  ACCORD_WINDOW_REGISTERED = 1, /* each rank's NCCL knows this rank's memory */
  ACCORD_WINDOW_SYMMETRIC = 2   /* kernels read and write the memory of other ranks */
};

/* Registers `bytes` at `memory`, on that device, which have to outlive the window; null: the window allocates them, aligned to 4096 and not zeroed.
 * Collective, and connects as the first call on a GPU does: all ranks get the window, or none does. `timeout_ns` 0: the
 * communicator's. It keeps the communicator's group open. */
ACCORD_API accord_status_t accord_device_window_create(accord_communicator_t* communicator, void* memory, size_t bytes,
                                                       accord_device_t device, int32_t device_index, int64_t timeout_ns,
                                                       accord_device_window_t** window);
/* Valid as long as the handle. Any result may be null. */
ACCORD_API accord_status_t accord_device_window_memory(accord_device_window_t* window, void** memory, size_t* bytes,
                                                       accord_window_use_t* use);
/* Gives the handle back: the memory is deregistered, and freed where the window allocated it. No call on it may be in a stream. */
ACCORD_API void accord_device_window_free(accord_device_window_t* window);

/* Makes an ncclComm_t of the same ranks in the same order the one by which `communicator` makes its calls on GPUs: before the first of
 * them, and on all ranks. It stays its owner's, lives longer than `communicator`, and is never destroyed or aborted by it. */
ACCORD_API accord_status_t accord_communicator_lend_nccl(accord_communicator_t* communicator, void* nccl_communicator);

/* ---- Calls ------------------------------------------------------------------------------------------------------------- */

/* What a call does, as the function of the same name describes it. 0 is none. */
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

/* One call as a value, for accord_run and accord_start. Memory is contiguous and belongs to the caller, who keeps it alive
 * until the call, or its work, is done. */
typedef struct accord_call {
  size_t struct_size;
  accord_call_kind_t kind;
  accord_dtype_t dtype; /* of both buffers; not used by a barrier */
  const void* input;    /* what is read: all kinds but barrier and recv, where this rank has one */
  size_t input_count;   /* its elements, all parts together */
  void* output;         /* what is written: all kinds but barrier and send, where this rank has one */
  size_t output_count;  /* its elements, all parts together */
  accord_op_t op;       /* where values are combined */
  int32_t root;         /* broadcast, reduce, gather, scatter */
  int32_t peer;         /* send, recv: the other rank */
  int32_t tag;          /* send, recv: tells messages of one pair of ranks apart; not negative */
  const void* factor;   /* premul_sum: one element of the dtype, read before the call, or the start of it, returns */
  /* The forms with V: the elements of each rank's part, in rank order and without gaps, where this rank has that buffer and it
   * has parts; one for each rank, read before the call, or the start of it, returns. */
  const size_t* input_counts;
  const size_t* output_counts;
} accord_call_t;

#define ACCORD_CALL_INIT \
  { sizeof(accord_call_t), 0, 0, NULL, 0, NULL, 0, ACCORD_SUM, 0, 0, 0, NULL, NULL, NULL }

/* What may differ from call to call. Null options are the defaults. */
typedef struct accord_call_options {
  size_t struct_size;
  int64_t timeout_ns; /* how long this call may take; 0: the communicator's timeout */
  void* stream; /* a cudaStream_t in whose order device memory is used; null: the default one; not used for the CPU */
  accord_device_t device; /* where the call's memory lies */
  int32_t device_index;   /* which of its kind */
} accord_call_options_t;

#define ACCORD_CALL_OPTIONS_INIT \
  { sizeof(accord_call_options_t), 0, NULL, ACCORD_CPU, 0 }

/* An operation under way: it goes on by itself, also when its handle or its communicator's is freed. */
typedef struct accord_work accord_work_t;

/* Runs `call` to its end. */
ACCORD_API accord_status_t accord_run(accord_communicator_t* communicator, const accord_call_t* call,
                                      const accord_call_options_t* options);

/* Starts `call` and leaves it to go on. ACCORD_OK says that there is a work; the work tells how the call ended, also when
 * its counts, ranks or addresses are wrong. */
ACCORD_API accord_status_t accord_start(accord_communicator_t* communicator, const accord_call_t* call,
                                        const accord_call_options_t* options, accord_work_t** work);

/* Runs `count` calls at once, to the end of all; the answer is that of the first in the list that failed. Messages to and from
 * any ranks are under way at the same time, so ranks may list theirs in any order; collectives run in the order of the list.
 * None begins if one is wrong. All have the struct_size of the first. */
ACCORD_API accord_status_t accord_run_batch(accord_communicator_t* communicator, const accord_call_t* calls,
                                            size_t count, const accord_call_options_t* options);
/* Starts them. The work ends when all have. */
ACCORD_API accord_status_t accord_start_batch(accord_communicator_t* communicator, const accord_call_t* calls,
                                              size_t count, const accord_call_options_t* options, accord_work_t** work);

/* `done` gets 1 once the operation has ended, well or badly, else 0. Never blocks. */
ACCORD_API accord_status_t accord_work_test(accord_work_t* work, int32_t* done);
/* Blocks until the operation has ended and gives how; the call's own timeout bounds it. */
ACCORD_API accord_status_t accord_work_wait(accord_work_t* work);
/* For a call on a GPU: what comes later in `stream`, a cudaStream_t of that device, begins once the operation has ended; the caller goes on at
 * once. For one on the CPU the same as accord_work_wait(). */
ACCORD_API accord_status_t accord_work_block(accord_work_t* work, void* stream);
/* Blocks for at most `timeout_ns`. If the operation still goes on then, `done` gets 0 and the answer is ACCORD_OK (it is not
 * cancelled); else `done` gets 1 and the answer is how it ended. */
ACCORD_API accord_status_t accord_work_wait_for(accord_work_t* work, int64_t timeout_ns, int32_t* done);
/* How it ended; ACCORD_WRONG_STATE while it goes on. */
ACCORD_API accord_status_t accord_work_status(accord_work_t* work);
/* Calls `callback` once with how it ended and `context`: now if it has, else on the thread that ends it, often accord's own. Other
 * operations stand still meanwhile, so it must be short and wait for none of them. Freeing the work does not undo it. */
ACCORD_API accord_status_t accord_work_on_end(accord_work_t* work,
                                              void (*callback)(accord_status_t status, void* context), void* context);
ACCORD_API void accord_work_free(accord_work_t* work);

/* Calls that are checked once and run as often as they are wanted. What they were made of is read then: counts, factors and options;
 * their memory stays with the caller, who keeps it alive as long as they are used. May be started again before the last start has
 * ended, as they run in order then. */
typedef struct accord_prepared accord_prepared_t;

/* Prepares one call, or `count` calls that run at once as those of accord_run_batch do. All have the struct_size of the first.
 * ACCORD_INVALID_ARGUMENT if one is wrong. */
ACCORD_API accord_status_t accord_prepare(accord_communicator_t* communicator, const accord_call_t* calls, size_t count,
                                          const accord_call_options_t* options, accord_prepared_t** prepared);
/* Runs them to their end. Of a single call it allocates nothing. */
ACCORD_API accord_status_t accord_prepared_run(accord_prepared_t* prepared);
/* Starts them. The work ends when all have. */
ACCORD_API accord_status_t accord_prepared_start(accord_prepared_t* prepared, accord_work_t** work);
/* Works under way go on. It keeps its communicator's group open until then. */
ACCORD_API void accord_prepared_free(accord_prepared_t* prepared);

/* The calls by name, each run to its end (premul_sum needs accord_run, for its factor). `count` is the elements of one part: of
 * one rank's share where a buffer has a share for each rank (then that buffer has size x `count`), else of the buffer. A buffer
 * that this rank does not have may be null. */

/* Returns once all ranks have called it. */
ACCORD_API accord_status_t accord_barrier(accord_communicator_t* communicator, const accord_call_options_t* options);
/* `buffer` of `root` goes to all. */
ACCORD_API accord_status_t accord_broadcast(accord_communicator_t* communicator, void* buffer, size_t count,
                                            accord_dtype_t dtype, int32_t root, const accord_call_options_t* options);
/* `output` (size x `count`) gets all ranks' `input` (`count`) in rank order. In place if input lies in its part. */
ACCORD_API accord_status_t accord_all_gather(accord_communicator_t* communicator, const void* input, void* output,
                                             size_t count, accord_dtype_t dtype, const accord_call_options_t* options);
/* Rank r gets in `output` (`count`) part r of all `input`s (size x `count`) combined. Same order and rounding as all_reduce. */
ACCORD_API accord_status_t accord_reduce_scatter(accord_communicator_t* communicator, const void* input, void* output,
                                                 size_t count, accord_dtype_t dtype, accord_op_t op,
                                                 const accord_call_options_t* options);
/* Combines `input` over all ranks in the canonical order: every rank ends with the same bits, in every run. In place if
 * `input` and `output` are the same. */
ACCORD_API accord_status_t accord_all_reduce(accord_communicator_t* communicator, const void* input, void* output,
                                             size_t count, accord_dtype_t dtype, accord_op_t op,
                                             const accord_call_options_t* options);
/* The same, but only `root` gets the result. */
ACCORD_API accord_status_t accord_reduce(accord_communicator_t* communicator, const void* input, void* output,
                                         size_t count, accord_dtype_t dtype, accord_op_t op, int32_t root,
                                         const accord_call_options_t* options);
/* `output` (size x `count`) of `root` gets all ranks' `input` (`count`) in rank order. */
ACCORD_API accord_status_t accord_gather(accord_communicator_t* communicator, const void* input, void* output,
                                         size_t count, accord_dtype_t dtype, int32_t root,
                                         const accord_call_options_t* options);
/* Rank r gets in `output` (`count`) part r of `input` (size x `count`) of `root`. */
ACCORD_API accord_status_t accord_scatter(accord_communicator_t* communicator, const void* input, void* output,
                                          size_t count, accord_dtype_t dtype, int32_t root,
                                          const accord_call_options_t* options);
/* Part p of rank r's `input` becomes part r of rank p's `output`; both have size x `count`. In place if they are the same. */
ACCORD_API accord_status_t accord_all_to_all(accord_communicator_t* communicator, const void* input, void* output,
                                             size_t count, accord_dtype_t dtype, const accord_call_options_t* options);
/* The same with parts of unequal counts, zero among them: `counts[r]` elements are rank r's. */

/* `counts`: of `output`, equal on all ranks; `input` has this rank's. */
ACCORD_API accord_status_t accord_all_gather_v(accord_communicator_t* communicator, const void* input, void* output,
                                               const size_t* counts, accord_dtype_t dtype,
                                               const accord_call_options_t* options);
/* `counts`: of `input`, equal on all ranks; `output` has this rank's. */
ACCORD_API accord_status_t accord_reduce_scatter_v(accord_communicator_t* communicator, const void* input, void* output,
                                                   const size_t* counts, accord_dtype_t dtype, accord_op_t op,
                                                   const accord_call_options_t* options);
/* `counts`: of `output`, used at the root only; each rank says how many elements its `input` has. */
ACCORD_API accord_status_t accord_gather_v(accord_communicator_t* communicator, const void* input, size_t input_count,
                                           void* output, const size_t* counts, accord_dtype_t dtype, int32_t root,
                                           const accord_call_options_t* options);
/* `counts`: of `input`, used at the root only; each rank says how many elements its `output` has. */
ACCORD_API accord_status_t accord_scatter_v(accord_communicator_t* communicator, const void* input,
                                            const size_t* counts, void* output, size_t output_count,
                                            accord_dtype_t dtype, int32_t root, const accord_call_options_t* options);
/* `input_counts[p]` elements go to rank p, `output_counts[p]` come from it. */
ACCORD_API accord_status_t accord_all_to_all_v(accord_communicator_t* communicator, const void* input,
                                               const size_t* input_counts, void* output, const size_t* output_counts,
                                               accord_dtype_t dtype, const accord_call_options_t* options);
/* Sends `buffer` to rank `to`, which must call recv with the same count and dtype. Returns when the buffer may be reused. Messages
 * with a tag are sent and received by accord_run and accord_start; these have none, which is tag 0. */
ACCORD_API accord_status_t accord_send(accord_communicator_t* communicator, const void* buffer, size_t count,
                                       accord_dtype_t dtype, int32_t to, const accord_call_options_t* options);
ACCORD_API accord_status_t accord_recv(accord_communicator_t* communicator, void* buffer, size_t count,
                                       accord_dtype_t dtype, int32_t from, const accord_call_options_t* options);
/* Receives the next message of that tag from whichever rank sends one, and writes the rank to `source`. Ranks are served in turns;
 * receives from one rank that were called before take its messages first. */
ACCORD_API accord_status_t accord_recv_any(accord_communicator_t* communicator, void* buffer, size_t count,
                                           accord_dtype_t dtype, int32_t tag, const accord_call_options_t* options,
                                           int32_t* source);

/* ---- Counters ------------------------------------------------------------------------------------------------------------ */

/* What this rank has done on a communicator since it was made; accord_communicator_counters writes it. */
typedef struct accord_counters {
  size_t struct_size;
  uint64_t failures; /* calls that began, or were queued, and ended in an error */
  uint64_t waits;    /* calls that waited so long for others (tens of microseconds) that they looked for failures */
  uint64_t queued;   /* calls that found others before them, and all that were started or run several at once */
} accord_counters_t;

#define ACCORD_COUNTERS_INIT \
  { sizeof(accord_counters_t), 0, 0, 0 }

/* Fills in `counters`, of which the caller sets the struct_size only; what this library does not count gets 0. */
ACCORD_API accord_status_t accord_communicator_counters(accord_communicator_t* communicator,
                                                        accord_counters_t* counters);

/* How many calls of that kind have begun, and the bytes of their buffers: of one part where a buffer is divided among the ranks, of
 * the larger of its two buffers where parts differ. Sends and receives count together, and so do the two forms of a call, with and
 * without V. Either result may be null. */
ACCORD_API accord_status_t accord_communicator_counters_of(accord_communicator_t* communicator, accord_call_kind_t kind,
                                                           uint64_t* calls, uint64_t* bytes);

/* ---- Plans of the program's own -------------------------------------------------------------------------------------------- */

/* How a plan is registered. Null options are the defaults. */
typedef struct accord_plan_options {
  size_t struct_size;
  const char* name;  /* what selection tables call it; null: the plan's own name */
  const char* bytes; /* "0-4k": it serves calls of these sizes without a table that says so; null: by name only */
} accord_plan_options_t;

#define ACCORD_PLAN_OPTIONS_INIT \
  { sizeof(accord_plan_options_t), NULL, NULL }

/* Registers the plan that `json` is (docs/plan-format.md) for all communicators of this process, also those that exist: selection
 * tables may name it from then on, ACCORD_SELECT="all_reduce:0-4k=my_plan"; with `bytes` it comes before the default table. All ranks
 * need the same plans before any of them makes a call that they serve, else that call ends with ACCORD_MISMATCH. Registering the
 * same again does nothing. ACCORD_CORRUPT: no plan; ACCORD_INVALID_ARGUMENT: the proof fails, and the error names the step, or the
 * name is taken. Cost: the proof, milliseconds; seconds for many ranks and steps. docs/plans.md is the guide. */
ACCORD_API accord_status_t accord_register_plan(const char* json, const accord_plan_options_t* options);
/* The same of the file `path`, which errors name. */
ACCORD_API accord_status_t accord_register_plan_file(const char* path, const accord_plan_options_t* options);

/* ---- Expert parallelism ------------------------------------------------------------------------------------------------ */

/* Ranks that share a set of experts: tokens go to the ranks that hold the experts they chose, and what the experts make of them comes
 * back. docs/expert-parallelism.md has the mathematics and the order of slots and sums. All ranks make the same calls in the same
 * order, one at a time on each rank. What one rank's arguments lack is an error on all ranks that names it and harms nothing (but of a
 * struct or number that makes no sense only its caller hears). */
typedef struct accord_expert_group accord_expert_group_t;

/* A routing map: where each choice of each token goes. One for each layer and microbatch in flight; it may be prepared anew once its
 * last backward is done. */
typedef struct accord_expert_handle accord_expert_handle_t;

/* What happens to a rank's rows when it is sent more than its capacity. */
typedef int32_t accord_overflow_policy_t;

enum {
  ACCORD_OVERFLOW_FAIL = 0, /* prepare fails on all ranks, before anything is moved */
  ACCORD_OVERFLOW_DROP_BY_WEIGHT =
      1, /* those of the lowest router weight are dropped, of equal ones the last by (rank, token, k) */
  ACCORD_OVERFLOW_DROP_BY_SLOT = 2 /* those whose slot is beyond the capacity are dropped */
};

/* How rows travel. The bits of all results are the same. */
typedef int32_t accord_expert_algorithm_t;

enum {
  ACCORD_EXPERT_AUTO = 0,       /* direct where all ranks share memory, else hierarchical */
  ACCORD_EXPERT_DIRECT = 1,     /* ranks read and write each other's memory */
  ACCORD_EXPERT_ALL_TO_ALL = 2, /* by all_to_all_v, each row once for each rank it goes to */
  ACCORD_EXPERT_HIERARCHICAL =
      3 /* each row crosses once to a host it goes to, and is passed on there in shared memory */
};

/* Equal on all ranks, which compare it. */
typedef struct accord_expert_config {
  size_t struct_size;
  int32_t experts;             /* global ids are 0 to experts - 1 */
  int32_t top_k;               /* the most choices of a token */
  int32_t hidden;              /* elements of a row */
  int32_t max_tokens_per_rank; /* the most that any rank has */
  int64_t max_recv_rows;       /* capacity of each rank in rows, padding included; 0: what is sent fits */
  int32_t alignment;           /* each expert's rows are padded to a multiple of it; 0: 1 */
  accord_dtype_t dtype;        /* the widest one of rows; 0: ACCORD_BFLOAT16 */
  accord_overflow_policy_t overflow;
  accord_expert_algorithm_t algorithm;
  /* Which experts each rank holds: placement_counts[r] global ids of rank r, ascending, rank by rank; an id that is listed several times has
   * replicas. Null: equal consecutive shares. */
  const int32_t* placement;
  const int32_t* placement_counts;
  size_t staging_bytes; /* shared memory of each rank for rows on their way; 0: a twentieth of what comes on average */
  int32_t ranks_per_host; /* 0: ranks that share memory are a host; n: n consecutive ones of those that do */
  int32_t reserved;       /* 0 */
  /* Where the arrays of all calls lie: of one kind on all ranks. On a GPU calls put kernels into their stream and return;
   * docs/expert-parallelism.md says what differs. */
  accord_device_t device;
  int32_t device_index;
} accord_expert_config_t;

#define ACCORD_EXPERT_CONFIG_INIT \
  { sizeof(accord_expert_config_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL, 0, 0, 0, 0, 0 }

/* What may differ among the handles of a group. Null: the group's. */
typedef struct accord_expert_layer {
  size_t struct_size;
  int32_t top_k;     /* 0: the group's */
  int32_t alignment; /* 0: the group's */
} accord_expert_layer_t;

#define ACCORD_EXPERT_LAYER_INIT \
  { sizeof(accord_expert_layer_t), 0, 0 }

/* What a rank put into prepare, as all ranks learnt it. */
typedef struct accord_expert_rank_counts {
  int64_t tokens;
  int64_t out_of_range; /* ids below -1 or beyond the last expert; they count as no choice */
  int64_t duplicates;   /* ids that the same token has at a lower k; they count as no choice */
  int64_t dropped;      /* choices of its tokens that overflow took */
  int64_t recv_rows;    /* rows that it receives, padding included */
  int64_t total_rows;   /* the same before any was dropped */
} accord_expert_rank_counts_t;

/* One choice of a token. */
typedef struct accord_expert_choice {
  int32_t rank;
  int32_t token;
  int32_t k;
} accord_expert_choice_t;

/* What a prepared map says of this rank. */
typedef struct accord_expert_map {
  size_t struct_size;
  int64_t tokens;     /* of this rank */
  int64_t recv_rows;  /* that dispatch writes here */
  int64_t total_rows; /* what it would be without dropping */
  int64_t dropped;    /* choices of all ranks that overflow dropped */
  uint64_t
      generation; /* counts the handle's maps; prepared again for equal ids it keeps its number, but not on a GPU */
  int32_t local_experts;
  int32_t top_k;
  uint64_t fingerprint; /* equal for equal maps of the handle, alike on all ranks */
} accord_expert_map_t;

#define ACCORD_EXPERT_MAP_INIT \
  { sizeof(accord_expert_map_t), 0, 0, 0, 0, 0, 0, 0, 0 }

/* What the calls of a group have moved on this rank so far. */
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

/* Collective over `communicator`, which is borrowed: it is neither closed nor otherwise used, and may go before the group.
 * ACCORD_INVALID_ARGUMENT names the field, ACCORD_MISMATCH the ranks and the field that differs. */
ACCORD_API accord_status_t accord_expert_group_create(accord_communicator_t* communicator,
                                                      const accord_expert_config_t* config,
                                                      accord_expert_group_t** group);
/* From now on buffers in `window`, of a communicator with the same ranks, are exchanged without a copy. Collective. */
ACCORD_API accord_status_t accord_expert_group_add_window(accord_expert_group_t* group, accord_window_t* window);
ACCORD_API accord_status_t accord_expert_group_statistics(accord_expert_group_t* group,
                                                          accord_expert_statistics_t* statistics);
/* seconds[r]: how much later than this rank, of `count` ranks, r came to calls; 0 for those on other hosts. */
ACCORD_API accord_status_t accord_expert_group_waits(accord_expert_group_t* group, double* seconds, size_t count);
/* Ends it: later calls give ACCORD_CLOSED. Idempotent; the communicator goes on. */
ACCORD_API accord_status_t accord_expert_group_close(accord_expert_group_t* group);
ACCORD_API void accord_expert_group_free(accord_expert_group_t* group);

/* A handle with memory for the largest map. Not collective, but to be made in the same order on all ranks. */
ACCORD_API accord_status_t accord_expert_handle_create(accord_expert_group_t* group, const accord_expert_layer_t* layer,
                                                       accord_expert_handle_t** handle);
ACCORD_API void accord_expert_handle_free(accord_expert_handle_t* handle);
/* What follows gives ACCORD_WRONG_STATE until the handle is prepared. `count` has to be what the array takes. */
ACCORD_API accord_status_t accord_expert_handle_map(accord_expert_handle_t* handle, accord_expert_map_t* map);
/* [local experts]: rows of each, padding included, and without it; either may be null. */
ACCORD_API accord_status_t accord_expert_handle_counts(accord_expert_handle_t* handle, int64_t* counts, int64_t* rows,
                                                       size_t count);
/* [ranks]. */
ACCORD_API accord_status_t accord_expert_handle_ranks(accord_expert_handle_t* handle,
                                                      accord_expert_rank_counts_t* ranks, size_t count);
/* [dropped], ascending, of all ranks. */
ACCORD_API accord_status_t accord_expert_handle_dropped(accord_expert_handle_t* handle, accord_expert_choice_t* choices,
                                                        size_t count);
/* [recv_rows]: the choice whose row each slot holds; rank -1 for padding. */
ACCORD_API accord_status_t accord_expert_handle_sources(accord_expert_handle_t* handle, accord_expert_choice_t* choices,
                                                        size_t count);
/* [tokens, top_k]: the rank and the slot there of each choice, -1 where there is none. */
ACCORD_API accord_status_t accord_expert_handle_slots(accord_expert_handle_t* handle, int32_t* ranks, int32_t* slots,
                                                      size_t count);

/* What a map on a GPU says of itself there, in a stream behind prepare, as long as the handle lives. */
typedef struct accord_expert_device_map {
  size_t struct_size;
  const int64_t* counts; /* [local_experts] */
  /* [5]: recv_rows; 1 if a rank would get more rows than its capacity; 1 if nothing is moved for that; ids of this rank that are
   * out of range or duplicates; rows for which the last call's array of slots had no room. */
  const int64_t* numbers;
  const uint64_t* fingerprint; /* [1]: accord_expert_map_t's */
} accord_expert_device_map_t;

#define ACCORD_EXPERT_DEVICE_MAP_INIT \
  { sizeof(accord_expert_device_map_t), NULL, NULL, NULL }

/* Null pointers for a handle on the CPU. */
ACCORD_API accord_status_t accord_expert_handle_on_device(accord_expert_handle_t* handle,
                                                          accord_expert_device_map_t* map);
/* On a GPU: waits for what is in `stream`, and copies the map, which the functions above tell of; they do it for the stream of the
 * last prepare if nobody did. ACCORD_RESOURCE_EXHAUSTED as prepare has it on the CPU, where this does nothing; ACCORD_ABORTED: the group
 * has failed before the map was made. */
ACCORD_API accord_status_t accord_expert_handle_fetch(accord_expert_handle_t* handle, void* stream);

/* The choices of this rank's tokens. */
typedef struct accord_expert_routing {
  size_t struct_size;
  const void* ids;      /* [tokens, top_k]; -1 is no choice */
  const float* weights; /* [tokens, top_k], for ACCORD_OVERFLOW_DROP_BY_WEIGHT, else null */
  int64_t tokens;
  accord_dtype_t ids_dtype; /* ACCORD_INT32 or ACCORD_INT64; 0: ACCORD_INT64 */
  int32_t reserved;         /* 0 */
  void* stream;             /* on a GPU: a cudaStream_t, into which the call goes; null: the default one */
} accord_expert_routing_t;

#define ACCORD_EXPERT_ROUTING_INIT \
  { sizeof(accord_expert_routing_t), NULL, NULL, 0, 0, 0, NULL }

/* Rows of a call, which must be of the same dtypes on all ranks. What the map says of tokens and recv_rows is how long arrays are; where
 * recv_capacity is not 0 it says how many rows those of slots hold, and fewer than recv_rows are refused. Pointers that are null are
 * left out; weights come in pairs, and so do scales ([rows, ceil(hidden / 128)], of float8 rows). */
typedef struct accord_expert_rows {
  size_t struct_size;
  void* tokens;       /* [tokens, hidden]: the tokens or their result, or the gradient of either */
  void* slots;        /* [recv_rows, hidden] */
  void* weights;      /* [tokens, top_k] */
  void* recv_weights; /* [recv_rows] */
  float* scales;      /* of tokens */
  float* recv_scales; /* of slots */
  int64_t recv_capacity;
  accord_dtype_t dtype;         /* of the rows that are read; has to be said */
  accord_dtype_t result_dtype;  /* of sums; 0: dtype */
  accord_dtype_t weights_dtype; /* ACCORD_FLOAT32 or ACCORD_FLOAT64; 0: ACCORD_FLOAT32 */
  int32_t reserved;             /* 0 */
  void* stream;                 /* as that of routing; on a GPU the call waits for the map if recv_capacity is 0 */
} accord_expert_rows_t;

#define ACCORD_EXPERT_ROWS_INIT \
  { sizeof(accord_expert_rows_t), NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 0, NULL }

/* Makes `handle` the map of `routing`. ACCORD_RESOURCE_EXHAUSTED: a rank would get more rows than its capacity and the policy is to
 * fail; the group goes on, the handle is not prepared. */
ACCORD_API accord_status_t accord_expert_prepare(accord_expert_group_t* group, accord_expert_handle_t* handle,
                                                 const accord_expert_routing_t* routing);
/* slots[slot] = tokens[t], recv_weights[slot] = weights[t, k]; padding is zero. */
ACCORD_API accord_status_t accord_expert_dispatch(accord_expert_group_t* group, accord_expert_handle_t* handle,
                                                  const accord_expert_rows_t* rows);
/* tokens[t] = sum of slots[slot] over the choices of t, each times its weight if there are weights; zero if there are no choices. */
ACCORD_API accord_status_t accord_expert_combine(accord_expert_group_t* group, accord_expert_handle_t* handle,
                                                 const accord_expert_rows_t* rows);
/* tokens[t] = sum of slots[slot] over the choices of t; weights[t, k] = recv_weights[slot], zero without a choice. */
ACCORD_API accord_status_t accord_expert_dispatch_backward(accord_expert_group_t* group, accord_expert_handle_t* handle,
                                                           const accord_expert_rows_t* rows);
/* slots[slot] = tokens[t]; padding is zero. */
ACCORD_API accord_status_t accord_expert_combine_backward(accord_expert_group_t* group, accord_expert_handle_t* handle,
                                                          const accord_expert_rows_t* rows);

/* A placement of `per_rank` experts for each of `ranks` ranks, replicas among them, that evens out the loads of `experts` experts: writes
 * ranks x per_rank global ids to `placement`. */
ACCORD_API accord_status_t accord_balance_experts(const double* loads, int32_t experts, int32_t ranks, int32_t per_rank,
                                                  int32_t* placement);

/* ---- Engines ------------------------------------------------------------------------------------------------------------- */

/* A compiled model with its collectives inside, loaded for this rank. docs/engine-format.md is its package. */
typedef struct accord_engine accord_engine_t;

/* The ranks that share a package: one of its logical groups ("tp"), or "pp" for stages of a pipeline or "dp" for replicas that share a
 * batch, which any package can be loaded over; and the communicator that it is bound to. */
typedef struct accord_engine_group {
  const char* name;
  accord_communicator_t* communicator;
} accord_engine_group_t;

/* How an engine is loaded. Null options are the defaults. */
typedef struct accord_engine_options {
  size_t struct_size;
  uint64_t memory_limit;   /* bytes that weights, arenas and caches of this rank may take together; 0: no limit */
  int32_t threads;         /* that it computes with; 0: ACCORD_THREADS */
  int32_t canonical_ranks; /* a power of two: outputs have the same bits on any number of ranks that divides it */
  int32_t
      overlap_rows; /* runs of so many rows are computed in two halves, each half's sums over the ranks under way while the
                            * other is computed; 0: none. Equal on all ranks */
  /* ACCORD_INT8: sums over the ranks of 32 KB and more travel in codes of 8 bits; 0: exact. Not with canonical_ranks or overlap_rows.
   * Equal on all ranks. docs/language-models.md */
  accord_dtype_t all_reduce_dtype;
  /* ACCORD_INT8, on the CPU: rows that are multiplied with weights of 8 or 4 bits are rounded to 8 bits; ACCORD_FLOAT8_E4M3FN, on GPUs: the same
   * with weights in 8-bit floats; 0: as they are. Equal on all ranks. docs/language-models.md, docs/gpu.md */
  accord_dtype_t activation_dtype;
  /* Where the model runs; inputs and outputs are on the CPU all the same. docs/gpu.md */
  accord_device_t device;
  int32_t device_index; /* which of its kind */
  int32_t reserved;     /* 0 */
} accord_engine_options_t;

#define ACCORD_ENGINE_OPTIONS_INIT \
  { sizeof(accord_engine_options_t), 0, 0, 0, 0, 0, 0, ACCORD_CPU, 0, 0 }

/* Loads the package at `path` for this rank and binds its groups; one that is not among the `count` given has one rank. Collective over
 * the groups, and agreed: if one rank cannot load, every rank gets its error. ACCORD_NOT_FOUND, ACCORD_CORRUPT (names file and tensor),
 * ACCORD_UNSUPPORTED (names the op), ACCORD_INVALID_ARGUMENT (more ranks than units to share, an unknown group or one that comes twice),
 * ACCORD_RESOURCE_EXHAUSTED (more than the limit), ACCORD_MISMATCH (ranks that loaded different packages). */
ACCORD_API accord_status_t accord_engine_load(const char* path, const accord_engine_group_t* groups, size_t count,
                                              const accord_engine_options_t* options, accord_engine_t** engine);
/* Writes what the package at `path` holds as JSON (that of `accord engine inspect`): inputs, outputs, sharding, bytes. As
 * accord_info_json. */
ACCORD_API accord_status_t accord_engine_inspect(const char* path, char* buffer, size_t size, size_t* needed);

/* An input or output: contiguous, row-major, on the CPU. */
typedef struct accord_tensor {
  void* data;
  const int64_t* shape; /* of `dimensions` numbers */
  int32_t dimensions;
  accord_dtype_t dtype;
} accord_tensor_t;

/* Runs the engine on `input_count` inputs, in their order, and fills in its `output_count` outputs, which are valid until the engine's
 * next run. Collective: every rank gives equal inputs. One thread at a time. ACCORD_INVALID_ARGUMENT names an input of a wrong
 * dtype or shape, or says how many there are. */
ACCORD_API accord_status_t accord_engine_run(accord_engine_t* engine, const accord_tensor_t* inputs, size_t input_count,
                                             accord_tensor_t* outputs, size_t output_count);
/* Gives the handle back; a language model goes on without it. */
ACCORD_API void accord_engine_free(accord_engine_t* engine);

/* ---- Language models ------------------------------------------------------------------------------------------------------- */

/* A language model on all ranks of an engine: rank 0 takes requests, batches them and samples; the others follow.
 * docs/language-models.md is the guide. */
typedef struct accord_language_model accord_language_model_t;

typedef struct accord_language_model_options {
  size_t struct_size;
  int32_t cache_tokens;       /* that the cache holds, of all sequences together; 0: those of one whole context */
  int32_t block_tokens;       /* a multiple of 16; 0: 16 */
  accord_dtype_t cache_dtype; /* ACCORD_FLOAT32, ACCORD_BFLOAT16 or ACCORD_INT8; 0: ACCORD_FLOAT32 */
  int32_t max_sequences;      /* that one step computes; 0: 64 */
  int32_t max_rows;           /* tokens that one step computes; 0: 512 */
  int32_t reserved;           /* 0 */
} accord_language_model_options_t;

#define ACCORD_LANGUAGE_MODEL_OPTIONS_INIT \
  { sizeof(accord_language_model_options_t), 0, 0, 0, 0, 0, 0 }

/* Makes the cache and, on rank 0, the thread that runs the model. Collective, and agreed. `all_ranks` connects the ranks of an engine
 * that is bound to several groups, or to none; else null. ACCORD_UNSUPPORTED if the package is no language model. */
ACCORD_API accord_status_t accord_language_model_create(accord_engine_t* engine,
                                                        const accord_language_model_options_t* options,
                                                        accord_communicator_t* all_ranks,
                                                        accord_language_model_t** model);
/* The other ranks: computes what rank 0 decides, until it stops (ACCORD_OK) or something fails on any rank. */
ACCORD_API accord_status_t accord_language_model_follow(accord_language_model_t* model);
/* Rank 0: ends all requests and the other ranks' follow. Idempotent. Gives the failure if there was one. */
ACCORD_API accord_status_t accord_language_model_stop(accord_language_model_t* model);
/* Rank 0's stops the model, and waits for the step that is under way. A stream that has not ended keeps the model; the last one then stops it. */
ACCORD_API void accord_language_model_free(accord_language_model_t* model);

/* One turn of a conversation. */
typedef struct accord_message {
  const char* role; /* "system", "user", "assistant" */
  const char* content;
} accord_message_t;

/* A text to be continued, or a conversation to be answered, and how tokens are drawn: the meaning is that of transformers. */
typedef struct accord_text_request {
  size_t struct_size;
  const char* prompt;               /* or null */
  const accord_message_t* messages; /* instead of a prompt: written as the package's chat format says */
  size_t message_count;
  const char* const* stop; /* texts that end an answer, of which they are no part */
  size_t stop_count;
  uint64_t seed;             /* equal seeds give equal tokens, whatever else is computed and on however many ranks */
  int32_t max_new_tokens;    /* 0: as many as context and cache hold */
  int32_t samples;           /* continuations of the same prompt; 0: 1 */
  int32_t priority;          /* [-100, 100], higher ones first */
  int32_t top_k;             /* draw from the best ones only; 0: all */
  double temperature;        /* 0: the best token */
  double top_p;              /* draw from the best ones of this probability together; 0: all */
  double min_p;              /* draw from those with this part of the best one's probability; 0: all */
  double repetition_penalty; /* divides the logits of tokens seen; 0: 1 */
} accord_text_request_t;

#define ACCORD_TEXT_REQUEST_INIT \
  { sizeof(accord_text_request_t), NULL, NULL, 0, NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* The text of one request as it comes. Used by one thread at a time. It keeps its model until it has given its last event. */
typedef struct accord_text_stream accord_text_stream_t;

/* Rank 0: asks. ACCORD_INVALID_ARGUMENT names what cannot be, ACCORD_NOT_FOUND: the package has no tokenizer or chat format,
 * ACCORD_RESOURCE_EXHAUSTED: too many wait; ACCORD_CLOSED after stop, or what ended the model. */
ACCORD_API accord_status_t accord_language_model_generate(accord_language_model_t* model,
                                                          const accord_text_request_t* request,
                                                          accord_text_stream_t** stream);

typedef int32_t accord_finish_t;

enum {
  ACCORD_FINISH_NONE = 0, /* it goes on */
  ACCORD_FINISH_STOP_TOKEN = 1,
  ACCORD_FINISH_STOP_SEQUENCE = 2, /* one of the texts that stop */
  ACCORD_FINISH_LENGTH = 3,
  ACCORD_FINISH_CANCELLED = 4,
  ACCORD_FINISH_ERROR = 5 /* told by the answer of accord_text_stream_next */
};

/* More text of a sample, or its end, or both. */
typedef struct accord_text_event {
  size_t struct_size;
  const char* text;       /* whole characters, valid until the stream's next call; null: all samples have ended */
  int32_t sample;         /* which of the request's samples */
  accord_finish_t finish; /* of the sample */
} accord_text_event_t;

#define ACCORD_TEXT_EVENT_INIT \
  { sizeof(accord_text_event_t), NULL, 0, 0 }

/* Waits for more text, at most `timeout_ns`; 0 does not wait. ACCORD_TIMEOUT: it may be called again; another error has ended a sample. */
ACCORD_API accord_status_t accord_text_stream_next(accord_text_stream_t* stream, int64_t timeout_ns,
                                                   accord_text_event_t* event);
/* Tokens of the prompt, and those generated so far in all samples. Either result may be null. */
ACCORD_API accord_status_t accord_text_stream_usage(accord_text_stream_t* stream, int64_t* prompt_tokens,
                                                    int64_t* completion_tokens);
/* Ends the request soon: text that is there, or comes until then, is given first. */
ACCORD_API accord_status_t accord_text_stream_cancel(accord_text_stream_t* stream);
/* Cancels what has not ended. */
ACCORD_API void accord_text_stream_free(accord_text_stream_t* stream);

#ifdef __cplusplus
}
#endif

/* NOLINTEND(modernize-use-using, readability-identifier-naming) */

#endif /* ACCORD_ACCORD_H_ */
