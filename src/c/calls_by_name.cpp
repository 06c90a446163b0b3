// The calls by name fill in the struct and pass it to accord_run. A count is the number of elements of one part; a
// buffer with a part for each rank has that many times the number of ranks.
#include <limits>

#include "accord/accord.h"
#include "c/call.hpp"
#include "c/handles.hpp"

using accord::c::run_call;

namespace {

/// Returns the number of elements of a buffer with a part of `count` for each rank. A count that overflows saturates,
/// and is rejected as too large later; a null communicator is rejected later as well.
size_t for_each_rank(const accord_communicator_t* communicator, size_t count) {
  if (communicator == nullptr) return count;
  const auto ranks = static_cast<size_t>(communicator->communicator.size());
  return count > std::numeric_limits<size_t>::max() / ranks ? std::numeric_limits<size_t>::max() : ranks * count;
}

/// Returns the number of elements of all parts together. A sum that overflows saturates; missing counts give 0, and
/// are rejected later.
size_t sum_of(const accord_communicator_t* communicator, const size_t* counts) {
  if (communicator == nullptr || counts == nullptr) return 0;
  size_t sum = 0;
  for (int rank = 0; rank < communicator->communicator.size(); ++rank)
    if (__builtin_add_overflow(sum, counts[rank], &sum)) return std::numeric_limits<size_t>::max();
  return sum;
}

size_t own_count(const accord_communicator_t* communicator, const size_t* counts) {
  return communicator == nullptr || counts == nullptr ? 0 : counts[communicator->communicator.rank()];
}

/// Creates a call whose `input` and `output` have the same dtype.
accord_call_t call_of(accord_call_kind_t kind, const void* input, size_t input_count, void* output, size_t output_count,
                      accord_dtype_t dtype) {
  accord_call_t call = ACCORD_CALL_INIT;
  call.kind = kind;
  call.dtype = dtype;
  call.input = input;
  call.input_count = input_count;
  call.output = output;
  call.output_count = output_count;
  return call;
}

}  // namespace

extern "C" accord_status_t accord_barrier(accord_communicator_t* communicator, const accord_call_options_t* options) {
  const accord_call_t call = call_of(ACCORD_CALL_BARRIER, nullptr, 0, nullptr, 0, 0);
  return run_call(__func__, communicator, &call, options);
}

extern "C" accord_status_t accord_broadcast(accord_communicator_t* communicator, void* buffer, size_t count,
                                            accord_dtype_t dtype, int32_t root, const accord_call_options_t* options) {
  accord_call_t call = call_of(ACCORD_CALL_BROADCAST, buffer, count, buffer, count, dtype);
  call.root = root;
  return run_call(__func__, communicator, &call, options);
}

extern "C" accord_status_t accord_all_gather(accord_communicator_t* communicator, const void* input, void* output,
                                             size_t count, accord_dtype_t dtype, const accord_call_options_t* options) {
  const accord_call_t call =
      call_of(ACCORD_CALL_ALL_GATHER, input, count, output, for_each_rank(communicator, count), dtype);
  return run_call(__func__, communicator, &call, options);
}

extern "C" accord_status_t accord_reduce_scatter(accord_communicator_t* communicator, const void* input, void* output,
                                                 size_t count, accord_dtype_t dtype, accord_op_t op,
                                                 const accord_call_options_t* options) {
  accord_call_t call =
      call_of(ACCORD_CALL_REDUCE_SCATTER, input, for_each_rank(communicator, count), output, count, dtype);
  call.op = op;
  return run_call(__func__, communicator, &call, options);
}

extern "C" accord_status_t accord_all_reduce(accord_communicator_t* communicator, const void* input, void* output,
                                             size_t count, accord_dtype_t dtype, accord_op_t op,
                                             const accord_call_options_t* options) {
  accord_call_t call = call_of(ACCORD_CALL_ALL_REDUCE, input, count, output, count, dtype);
  call.op = op;
  return run_call(__func__, communicator, &call, options);
}

extern "C" accord_status_t accord_reduce(accord_communicator_t* communicator, const void* input, void* output,
                                         size_t count, accord_dtype_t dtype, accord_op_t op, int32_t root,
                                         const accord_call_options_t* options) {
  accord_call_t call = call_of(ACCORD_CALL_REDUCE, input, count, output, count, dtype);
  call.op = op;
  call.root = root;
  return run_call(__func__, communicator, &call, options);
}

extern "C" accord_status_t accord_gather(accord_communicator_t* communicator, const void* input, void* output,
                                         size_t count, accord_dtype_t dtype, int32_t root,
                                         const accord_call_options_t* options) {
  accord_call_t call = call_of(ACCORD_CALL_GATHER, input, count, output, for_each_rank(communicator, count), dtype);
  call.root = root;
  return run_call(__func__, communicator, &call, options);
}

extern "C" accord_status_t accord_scatter(accord_communicator_t* communicator, const void* input, void* output,
                                          size_t count, accord_dtype_t dtype, int32_t root,
                                          const accord_call_options_t* options) {
  accord_call_t call = call_of(ACCORD_CALL_SCATTER, input, for_each_rank(communicator, count), output, count, dtype);
  call.root = root;
  return run_call(__func__, communicator, &call, options);
}

extern "C" accord_status_t accord_all_to_all(accord_communicator_t* communicator, const void* input, void* output,
                                             size_t count, accord_dtype_t dtype, const accord_call_options_t* options) {
  const accord_call_t call = call_of(ACCORD_CALL_ALL_TO_ALL, input, for_each_rank(communicator, count), output,
                                     for_each_rank(communicator, count), dtype);
  return run_call(__func__, communicator, &call, options);
}

extern "C" accord_status_t accord_all_gather_v(accord_communicator_t* communicator, const void* input, void* output,
                                               const size_t* counts, accord_dtype_t dtype,
                                               const accord_call_options_t* options) {
  accord_call_t call = call_of(ACCORD_CALL_ALL_GATHER_V, input, own_count(communicator, counts), output,
                               sum_of(communicator, counts), dtype);
  call.output_counts = counts;
  return run_call(__func__, communicator, &call, options);
}

extern "C" accord_status_t accord_reduce_scatter_v(accord_communicator_t* communicator, const void* input, void* output,
                                                   const size_t* counts, accord_dtype_t dtype, accord_op_t op,
                                                   const accord_call_options_t* options) {
  accord_call_t call = call_of(ACCORD_CALL_REDUCE_SCATTER_V, input, sum_of(communicator, counts), output,
                               own_count(communicator, counts), dtype);
  call.op = op;
  call.input_counts = counts;
  return run_call(__func__, communicator, &call, options);
}

extern "C" accord_status_t accord_gather_v(accord_communicator_t* communicator, const void* input, size_t input_count,
                                           void* output, const size_t* counts, accord_dtype_t dtype, int32_t root,
                                           const accord_call_options_t* options) {
  accord_call_t call = call_of(ACCORD_CALL_GATHER_V, input, input_count, output, sum_of(communicator, counts), dtype);
  call.root = root;
  call.output_counts = counts;
  return run_call(__func__, communicator, &call, options);
}

extern "C" accord_status_t accord_scatter_v(accord_communicator_t* communicator, const void* input,
                                            const size_t* counts, void* output, size_t output_count,
                                            accord_dtype_t dtype, int32_t root, const accord_call_options_t* options) {
  accord_call_t call = call_of(ACCORD_CALL_SCATTER_V, input, sum_of(communicator, counts), output, output_count, dtype);
  call.root = root;
  call.input_counts = counts;
  return run_call(__func__, communicator, &call, options);
}

extern "C" accord_status_t accord_all_to_all_v(accord_communicator_t* communicator, const void* input,
                                               const size_t* input_counts, void* output, const size_t* output_counts,
                                               accord_dtype_t dtype, const accord_call_options_t* options) {
  accord_call_t call = call_of(ACCORD_CALL_ALL_TO_ALL_V, input, sum_of(communicator, input_counts), output,
                               sum_of(communicator, output_counts), dtype);
  call.input_counts = input_counts;
  call.output_counts = output_counts;
  return run_call(__func__, communicator, &call, options);
}

extern "C" accord_status_t accord_send(accord_communicator_t* communicator, const void* buffer, size_t count,
                                       accord_dtype_t dtype, int32_t to, const accord_call_options_t* options) {
  accord_call_t call = call_of(ACCORD_CALL_SEND, buffer, count, nullptr, 0, dtype);
  call.peer = to;
  return run_call(__func__, communicator, &call, options);
}

extern "C" accord_status_t accord_recv(accord_communicator_t* communicator, void* buffer, size_t count,
                                       accord_dtype_t dtype, int32_t from, const accord_call_options_t* options) {
  accord_call_t call = call_of(ACCORD_CALL_RECV, nullptr, 0, buffer, count, dtype);
  call.peer = from;
  return run_call(__func__, communicator, &call, options);
}
