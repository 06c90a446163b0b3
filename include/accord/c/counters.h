/* Counters. Included by accord.h. */
#ifndef ACCORD_C_COUNTERS_H_
#define ACCORD_C_COUNTERS_H_

#include <stddef.h>
#include <stdint.h>

#include "accord/c/call.h"
#include "accord/c/communicator.h"
#include "accord/c/status.h"

/* NOLINTBEGIN(modernize-use-using, readability-identifier-naming): typedefs and names are those of C. */

#ifdef __cplusplus
extern "C" {
#endif

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

#ifdef __cplusplus
}
#endif

/* NOLINTEND(modernize-use-using, readability-identifier-naming) */

#endif /* ACCORD_C_COUNTERS_H_ */
