/* GPU memory and NCCL communicators. Included by accord.h. */
#ifndef ACCORD_C_DEVICE_WINDOW_H_
#define ACCORD_C_DEVICE_WINDOW_H_

#include <stddef.h>
#include <stdint.h>

#include "accord/c/communicator.h"
#include "accord/c/status.h"
#include "accord/c/types.h"

/* NOLINTBEGIN(modernize-use-using, readability-identifier-naming): typedefs and names are those of C. */

#ifdef __cplusplus
extern "C" {
#endif

/* GPU memory of one rank that is registered with all ranks of a communicator; every rank registers the same size.
 * Calls on buffers in it copy less, depending on its use and on whether it is direct, and give the same results. See
 * docs/gpu.md. */
typedef struct accord_device_window accord_device_window_t;

typedef int32_t accord_window_use_t;
enum {
  ACCORD_WINDOW_PLAIN = 0,      /* like any other memory: this NCCL is too old to register it */
  ACCORD_WINDOW_REGISTERED = 1, /* each rank's NCCL knows this rank's memory */
  ACCORD_WINDOW_SYMMETRIC = 2   /* kernels read and write the memory of other ranks */
};

/* Registers `bytes` at `memory` on the given device; the memory must outlive the windows of all ranks. If `memory` is
 * null, the window allocates it, aligned to 4096 bytes and not zeroed. Collective; it connects the ranks as the first
 * call on a GPU does, and all ranks get the window or none does. A `timeout_ns` of 0 means the communicator's timeout.
 * The window keeps the communicator's group open. */
ACCORD_API accord_status_t accord_device_window_create(accord_communicator_t* communicator, void* memory, size_t bytes,
                                                       accord_device_t device, int32_t device_index, int64_t timeout_ns,
                                                       accord_device_window_t** window);
/* The memory is valid as long as the handle. Any result may be null. */
ACCORD_API accord_status_t accord_device_window_memory(accord_device_window_t* window, void** memory, size_t* bytes,
                                                       accord_window_use_t* use);
/* Sets `is_direct` to 1 if accord's plans read and write the memory of all ranks in place, else to 0. Equal on all
 * ranks. */
ACCORD_API accord_status_t accord_device_window_is_direct(accord_device_window_t* window, int32_t* is_direct);
/* Releases the handle. The memory is deregistered, and freed if the window allocated it. No call that uses it may
 * still be in a stream. */
ACCORD_API void accord_device_window_free(accord_device_window_t* window);

/* Makes `communicator` use an existing ncclComm_t, over the same ranks in the same order, for its calls on GPUs. Must
 * be called on all ranks, before the first such call. The ncclComm_t still belongs to its owner: it must outlive
 * `communicator`, which never destroys or aborts it. */
ACCORD_API accord_status_t accord_communicator_lend_nccl(accord_communicator_t* communicator, void* nccl_communicator);

#ifdef __cplusplus
}
#endif

/* NOLINTEND(modernize-use-using, readability-identifier-naming) */

#endif /* ACCORD_C_DEVICE_WINDOW_H_ */
