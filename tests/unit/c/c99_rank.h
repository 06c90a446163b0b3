/* A rank written in C. */
#ifndef ACCORD_TESTS_UNIT_C_C99_RANK_H_
#define ACCORD_TESTS_UNIT_C_C99_RANK_H_

#include "accord/accord.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Joins the group and makes every kind of call. Returns 0, or the line of the check that failed. */
int run_c99_rank(accord_store_t* store, int32_t rank, int32_t size);

#ifdef __cplusplus
}
#endif

#endif /* ACCORD_TESTS_UNIT_C_C99_RANK_H_ */
