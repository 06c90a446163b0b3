/* User-defined plans. Included by accord.h. */
#ifndef ACCORD_C_PLAN_H_
#define ACCORD_C_PLAN_H_

#include <stddef.h>

#include "accord/c/status.h"

/* NOLINTBEGIN(modernize-use-using, readability-identifier-naming): typedefs and names are those of C. */

#ifdef __cplusplus
extern "C" {
#endif

/* How a plan is registered. Null options are the defaults. */
typedef struct accord_plan_options {
  size_t struct_size;
  const char* name;  /* name in selection tables; null: the plan's own name */
  const char* bytes; /* "0-4k": serves calls of these sizes even if no table names it; null: only by name */
} accord_plan_options_t;

#define ACCORD_PLAN_OPTIONS_INIT \
  { sizeof(accord_plan_options_t), NULL, NULL }

/* Registers the plan in `json` (docs/plan-format.md) for all communicators of this process, including existing ones.
 * Selection tables may then name it, as in ACCORD_SELECT="all_reduce:0-4k=my_plan"; with `bytes` it has precedence
 * over the default table. All ranks need the same plans before any of them makes a call that they serve; otherwise
 * that call ends with ACCORD_MISMATCH. Registering the same plan again does nothing. Fails with ACCORD_CORRUPT if
 * `json` is not a plan, or ACCORD_INVALID_ARGUMENT if verification fails (the error names the step) or the name is
 * taken. Cost: the verification, milliseconds; seconds for many ranks and steps. docs/plans.md is the guide. */
ACCORD_API accord_status_t accord_register_plan(const char* json, const accord_plan_options_t* options);
/* Registers the plan in the file `path`. Errors name the file. */
ACCORD_API accord_status_t accord_register_plan_file(const char* path, const accord_plan_options_t* options);

#ifdef __cplusplus
}
#endif

/* NOLINTEND(modernize-use-using, readability-identifier-naming) */

#endif /* ACCORD_C_PLAN_H_ */
