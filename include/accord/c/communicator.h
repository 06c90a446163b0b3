/* Communicators. Included by accord.h. */
#ifndef ACCORD_C_COMMUNICATOR_H_
#define ACCORD_C_COMMUNICATOR_H_

#include <stddef.h>
#include <stdint.h>

#include "accord/c/status.h"
#include "accord/c/store.h"

/* NOLINTBEGIN(modernize-use-using, readability-identifier-naming): typedefs and names are those of C. */

#ifdef __cplusplus
extern "C" {
#endif

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

/* Creates a communicator of this process alone, without a store. It can join others by reconfigure. */
ACCORD_API accord_status_t accord_communicator_alone(const accord_communicator_options_t* options,
                                                     accord_communicator_t** communicator);

/* A buffer of this size has room for every handle and its terminating zero. */
#define ACCORD_HANDLE_BYTES 512

/* Writes the text by which other ranks name this one in accord_communicator_reconfigure() to `text`, which has room for
 * `bytes`; fails with ACCORD_RESOURCE_EXHAUSTED if that is not enough. It is valid for one reconfiguration. */
ACCORD_API accord_status_t accord_communicator_handle(accord_communicator_t* communicator, char* text, size_t bytes);

typedef int32_t accord_rank_order_t;

enum {
  ACCORD_RANKS_AS_LISTED = 0,   /* ranks are numbered by their places in the list */
  ACCORD_RANKS_IN_ANY_ORDER = 1 /* in an order that is the same on all ranks */
};

/* Creates a new communicator of the ranks with the `count` handles, whatever communicators they are in now; this one
 * stays as it is, and may have failed. All ranks pass the same handles, which include their own, and the same `uuid`,
 * any text that none of them has passed before. All get the communicator or an error, which names the ranks at fault by
 * their new numbers: ACCORD_PEER_LOST, ACCORD_MISMATCH, ACCORD_TIMEOUT (`timeout_ns` 0: the communicator's timeout), or
 * ACCORD_INVALID_ARGUMENT if the uuid was already used. */
ACCORD_API accord_status_t accord_communicator_reconfigure(accord_communicator_t* communicator, const char* uuid,
                                                           const char* const* handles, size_t count,
                                                           accord_rank_order_t order, int64_t timeout_ns,
                                                           accord_communicator_t** formed);

ACCORD_API accord_status_t accord_communicator_rank(accord_communicator_t* communicator, int32_t* rank);
ACCORD_API accord_status_t accord_communicator_size(accord_communicator_t* communicator, int32_t* size);
/* The name is valid as long as the handle. */
ACCORD_API accord_status_t accord_communicator_name(accord_communicator_t* communicator, const char** name);

typedef int32_t accord_state_t;

enum { ACCORD_STATE_READY = 0, ACCORD_STATE_FAILED = 1, ACCORD_STATE_CLOSED = 2 };

ACCORD_API accord_status_t accord_communicator_state(accord_communicator_t* communicator, accord_state_t* state);

/* Returns ACCORD_OK when ready, or the reason why the communicator failed or was closed. */
ACCORD_API accord_status_t accord_communicator_status(accord_communicator_t* communicator);

/* Ends every pending and later call on all ranks with ACCORD_ABORTED and `reason` (null: no reason given), also those
 * of groups that this rank has made from it by a split or a mesh. May be called from any thread. */
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

#ifdef __cplusplus
}
#endif

/* NOLINTEND(modernize-use-using, readability-identifier-naming) */

#endif /* ACCORD_C_COMMUNICATOR_H_ */
