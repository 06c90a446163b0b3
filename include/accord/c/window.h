/* Windows. Included by accord.h. */
#ifndef ACCORD_C_WINDOW_H_
#define ACCORD_C_WINDOW_H_

#include <stddef.h>
#include <stdint.h>

#include "accord/c/communicator.h"
#include "accord/c/status.h"

/* NOLINTBEGIN(modernize-use-using, readability-identifier-naming): typedefs and names are those of C. */

#ifdef __cplusplus
extern "C" {
#endif

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

#ifdef __cplusplus
}
#endif

/* NOLINTEND(modernize-use-using, readability-identifier-naming) */

#endif /* ACCORD_C_WINDOW_H_ */
