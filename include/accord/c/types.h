/* Element types, operations and devices. Included by accord.h. */
#ifndef ACCORD_C_TYPES_H_
#define ACCORD_C_TYPES_H_

#include <stddef.h>
#include <stdint.h>

#include "accord/c/status.h"

/* NOLINTBEGIN(modernize-use-using, readability-identifier-naming): typedefs and names are those of C. */

#ifdef __cplusplus
extern "C" {
#endif

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

#ifdef __cplusplus
}
#endif

/* NOLINTEND(modernize-use-using, readability-identifier-naming) */

#endif /* ACCORD_C_TYPES_H_ */
