/* Stores: how ranks that do not know each other yet meet. Included by accord.h. */
#ifndef ACCORD_C_STORE_H_
#define ACCORD_C_STORE_H_

#include <stddef.h>
#include <stdint.h>

#include "accord/c/status.h"

/* NOLINTBEGIN(modernize-use-using, readability-identifier-naming): typedefs and names are those of C. */

#ifdef __cplusplus
extern "C" {
#endif

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

#ifdef __cplusplus
}
#endif

/* NOLINTEND(modernize-use-using, readability-identifier-naming) */

#endif /* ACCORD_C_STORE_H_ */
