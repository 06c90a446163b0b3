/* Statuses, the last error, and the features of this build. Included by accord.h. */
#ifndef ACCORD_C_STATUS_H_
#define ACCORD_C_STATUS_H_

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

#ifdef __cplusplus
}
#endif

/* NOLINTEND(modernize-use-using, readability-identifier-naming) */

#endif /* ACCORD_C_STATUS_H_ */
