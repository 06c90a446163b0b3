#pragma once
// Ranks as threads that use the C interface.

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "accord/accord.h"

namespace accord::testing {

/// Returns success, or a failure that shows the status and the last error. A function rather than a macro, so it does
/// not show the caller's line.
inline ::testing::AssertionResult is_ok(accord_status_t status) {
  if (status == ACCORD_OK) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << accord_status_name(status) << ": " << accord_last_error();
}

/// Returns the ranks at fault in the last error.
inline std::vector<int> last_error_ranks() {
  size_t count = 0;
  const int32_t* ranks = accord_last_error_ranks(&count);
  return {ranks, ranks + count};
}

/// Runs `body` as ranks 0 .. size-1, each on its own thread, over one store in memory.
inline void run_store_ranks(int size, const std::function<void(accord_store_t*, int rank)>& body) {
  accord_store_t* store = nullptr;
  ASSERT_TRUE(is_ok(accord_memory_store_create(&store)));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back([&, rank] { body(store, rank); });
  for (std::thread& thread : threads) thread.join();
  accord_store_free(store);
}

/// Does the same with a communicator, which `body` must not free.
inline void run_c_ranks(int size, const std::function<void(accord_communicator_t*, int rank)>& body) {
  run_store_ranks(size, [&](accord_store_t* store, int rank) {
    accord_communicator_t* communicator = nullptr;
    ASSERT_TRUE(is_ok(accord_communicator_create(store, rank, size, nullptr, &communicator)));
    body(communicator, rank);
    accord_communicator_free(communicator);
  });
}

/// Returns a call of one kind on one element, in place.
inline accord_call_t call_on(accord_call_kind_t kind, accord_dtype_t dtype, void* element) {
  accord_call_t call = ACCORD_CALL_INIT;
  call.kind = kind;
  call.dtype = dtype;
  call.input = call.output = element;
  call.input_count = call.output_count = 1;
  return call;
}

}  // namespace accord::testing
