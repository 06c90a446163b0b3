/* Engines. Included by accord.h. */
#ifndef ACCORD_C_ENGINE_H_
#define ACCORD_C_ENGINE_H_

#include <stddef.h>
#include <stdint.h>

#include "accord/c/communicator.h"
#include "accord/c/status.h"
#include "accord/c/types.h"

/* NOLINTBEGIN(modernize-use-using, readability-identifier-naming): typedefs and names are those of C. */

#ifdef __cplusplus
extern "C" {
#endif

/* A compiled model with its collectives inside, loaded for this rank. docs/engine-format.md describes its package. */
typedef struct accord_engine accord_engine_t;

/* A group that shares a package, and the communicator it is bound to. The name is that of one of the package's
 * logical groups ("tp"); or "pp" for the stages of a pipeline, "dp" for replicas that share a batch, or "cp" for ranks
 * that divide the tokens of a language model's sequences. */
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

#ifdef __cplusplus
}
#endif

/* NOLINTEND(modernize-use-using, readability-identifier-naming) */

#endif /* ACCORD_C_ENGINE_H_ */
