/* The C interface of accord.
 *
 * Programs include this header. Its parts are in accord/c, to be read in this order: status.h, types.h, store.h,
 * communicator.h, elastic.h, call.h (calls and works), window.h, device_window.h (GPU memory and NCCL communicators),
 * counters.h, plan.h, expert.h, engine.h and language_model.h.
 *
 * Every build exports every function of these headers under the same symbol. A function that the build or the machine
 * does not support returns ACCORD_UNSUPPORTED. Functions return an accord_status_t: ACCORD_OK, or the reason for the
 * failure. After a failure, accord_last_error() has the message and accord_last_error_ranks() the ranks at fault. Any
 * thread may call any function. Strings are UTF-8 and null-terminated; accord owns the strings that it returns and
 * copies those that it is passed.
 *
 * Objects are handles. A function that creates one returns it through its last argument (null if it fails), and the
 * matching _free function releases it. Handles may be freed in any order, and freeing null is allowed. Freeing a
 * handle never waits for another rank and does not disturb any operation that it refers to. No other thread may be
 * inside a call with a handle while it is being freed.
 *
 * A struct begins with its struct_size, which its _INIT macro sets; 0 in any other field selects the default. Structs
 * grow only at their end. A struct_size of 0, or smaller than that of the first version, is rejected. A struct_size
 * larger than this library knows is rejected unless the extra bytes are zero, so a program may use a newer header
 * than its library as long as it requests nothing new.
 *
 * Times are in nanoseconds. docs/c.md is the guide. */
#ifndef ACCORD_ACCORD_H_
#define ACCORD_ACCORD_H_

#include "accord/c/call.h"
#include "accord/c/communicator.h"
#include "accord/c/counters.h"
#include "accord/c/device_window.h"
#include "accord/c/elastic.h"
#include "accord/c/engine.h"
#include "accord/c/expert.h"
#include "accord/c/language_model.h"
#include "accord/c/plan.h"
#include "accord/c/status.h"
#include "accord/c/store.h"
#include "accord/c/types.h"
#include "accord/c/window.h"

#endif /* ACCORD_ACCORD_H_ */
