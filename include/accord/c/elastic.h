/* Groups that go on without ranks that have died, and take in new ones. Included by accord.h; docs/elastic.md. */
#ifndef ACCORD_C_ELASTIC_H_
#define ACCORD_C_ELASTIC_H_

#include <stddef.h>
#include <stdint.h>

#include "accord/c/communicator.h"
#include "accord/c/status.h"
#include "accord/c/store.h"

/* NOLINTBEGIN(modernize-use-using, readability-identifier-naming): typedefs and names are those of C. */

#ifdef __cplusplus
extern "C" {
#endif

/* One process's part in a group whose ranks change. When a rank has died, or others wait to join, the ranks call
 * accord_elastic_group_form, which makes a communicator of all processes that are there. Nothing else has to survive
 * but the store. examples/elastic_job.c is a whole program. One thread at a time may use a handle, but for
 * accord_elastic_group_close. */
typedef struct accord_elastic_group accord_elastic_group_t;

typedef struct accord_elastic_options {
  size_t struct_size;
  const char* name;        /* distinguishes the elastic groups of one store; null: "elastic" */
  int64_t last_call_ns;    /* how long the first group waits for more ranks once min_ranks are there; 0: 10 seconds */
  int64_t form_timeout_ns; /* how long form waits for live ranks of the former group, for min_ranks, and for the ranks
                              to connect; 0: the timeout of `communicator` */
  const accord_communicator_options_t* communicator; /* of the groups; its name is not used; null: the defaults */
  int32_t min_ranks;                                 /* fewer form no group; 0: 1 */
  int32_t max_ranks; /* further processes are spares: they wait until there is a place; 0: 65536 */
} accord_elastic_options_t;

#define ACCORD_ELASTIC_OPTIONS_INIT \
  { sizeof(accord_elastic_options_t), NULL, 0, 0, NULL, 0, 0 }

/* Takes part in the elastic group that the options name, in `store`, which has to outlive all ranks. Null options are
 * the defaults. Costs a listening TCP socket and a thread, which sleeps. */
ACCORD_API accord_status_t accord_elastic_group_open(accord_store_t* store, const accord_elastic_options_t* options,
                                                     accord_elastic_group_t** group);

/* Does the same in the store of the job, with ACCORD_ELASTIC=MIN:MAX in place of the options' numbers of ranks. `accord
 * run --elastic` sets it. ACCORD_INVALID_ARGUMENT if it is wrong or absent. */
ACCORD_API accord_status_t accord_elastic_group_from_environment(const accord_elastic_options_t* options,
                                                                 accord_elastic_group_t** group);

/* Leaves the current communicator, which ends the calls of its other ranks with an error, so that they come here as
 * well, and forms the next one: of its ranks that live, in their order, then of the processes that wait, at most
 * `max_ranks`. Waits as long as others work in a group that has no place for this process. `communicator` receives a
 * new handle, or null once the job is finished; handles of former groups stay the caller's to free. Fails with
 * ACCORD_TIMEOUT if `min_ranks` did not come, ACCORD_MISMATCH if their communicators have different options, ACCORD_IO
 * if the store is gone, ACCORD_ABORTED after close. */
ACCORD_API accord_status_t accord_elastic_group_form(accord_elastic_group_t* group,
                                                     accord_communicator_t** communicator);

/* Sets `waits` to 1 if processes wait that have a place in the group, so that all ranks should call form, else to 0.
 * All ranks call it, and get the same answer. Costs one request of rank 0 to the store, and a broadcast. */
ACCORD_API accord_status_t accord_elastic_group_others_wait(accord_elastic_group_t* group, int32_t* waits);

/* Sets `rank` to the lowest rank among those whose `steps` is largest. All ranks call it, and get the same answer.
 * `steps`: how far this process is; -1 if it has nothing that others could use. */
ACCORD_API accord_status_t accord_elastic_group_most_advanced(accord_elastic_group_t* group, int64_t steps,
                                                              int32_t* rank);

/* Sets `round` to the number of groups that all processes have formed, with the current one; 0 before the first. */
ACCORD_API accord_status_t accord_elastic_group_round(accord_elastic_group_t* group, int64_t* round);

/* Tells all processes that the job is done: form gives null from now on. */
ACCORD_API accord_status_t accord_elastic_group_finish(accord_elastic_group_t* group);

/* Leaves for good; the others go on without this process. Any thread may call it, also during form. Idempotent. */
ACCORD_API accord_status_t accord_elastic_group_close(accord_elastic_group_t* group);

/* Closes the group and frees the handle. Communicators that it formed fail, but their handles stay valid. */
ACCORD_API void accord_elastic_group_free(accord_elastic_group_t* group);

#ifdef __cplusplus
}
#endif

/* NOLINTEND(modernize-use-using, readability-identifier-naming) */

#endif /* ACCORD_C_ELASTIC_H_ */
