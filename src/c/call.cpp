// Calls: accord_run and accord_start translate a struct to an accord::Call. The communicator checks the call; this
// file rejects only what cannot be expressed in C++.
#include "c/call.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <span>
#include <vector>

#include "accord/accord.h"
#include "accord/call.hpp"
#include "accord/communicator.hpp"
#include "c/answer.hpp"
#include "c/handles.hpp"
#include "c/numbers.hpp"
#include "c/structs.hpp"
#include "c/times.hpp"

using accord::Call;
using accord::CallOptions;
using accord::ConstBuffer;
using accord::DType;
using accord::Reduction;
using accord::Result;
using accord::Status;
using accord::StatusCode;
using accord::c::answer;

namespace {

/// A call in its C++ form, with its options.
struct ReadCall {
  Call call;
  CallOptions options;
};

Result<DType> dtype_of(const accord_call_t& call, std::string_view function) {
  const bool has_memory =
      call.input != nullptr || call.output != nullptr || call.input_count > 0 || call.output_count > 0;
  if (call.dtype == 0 && !has_memory) return DType::kFloat32;  // the dtype is not used
  return accord::c::value_of(accord::c::kDTypes, call.dtype, function, "dtype");
}

/// `ranks`: number of ranks of the communicator.
Result<ReadCall> read_call(const accord_call_t* given, const accord_call_options_t* given_options, std::size_t ranks,
                           std::string_view function) {
  ACCORD_ASSIGN_OR_RETURN(const accord_call_t call, accord::c::read_struct(given, function));
  ACCORD_ASSIGN_OR_RETURN(const accord_call_options_t options, accord::c::read_struct(given_options, function));
  ACCORD_ASSIGN_OR_RETURN(const accord::c::CallKind kind,
                          accord::c::value_of(accord::c::kCallKinds, call.kind, function, "kind"));
  ACCORD_ASSIGN_OR_RETURN(const accord::ReduceOp op, accord::c::value_of(accord::c::kOps, call.op, function, "op"));
  ACCORD_ASSIGN_OR_RETURN(const DType dtype, dtype_of(call, function));
  ACCORD_ASSIGN_OR_RETURN(const accord::Device device,
                          accord::c::device_of(options.device, options.device_index, function));
  ACCORD_ASSIGN_OR_RETURN(const auto timeout, accord::c::timeout_of(options.timeout_ns, function));
  if (kind.division == accord::Division::kEqual && (call.input_counts != nullptr || call.output_counts != nullptr))
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{}: counts are given, but only kinds of calls that end in _V take counts", function));
  if (call.factor != nullptr && op != accord::ReduceOp::kPremulSum)
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{}: factor is given, but op is {}, not premul_sum", function, accord::to_string(op)));
  const ConstBuffer factor(call.factor, 1, dtype, device);
  const auto counts = [&](const size_t* first) { return std::span(first, first == nullptr ? 0 : ranks); };
  return ReadCall{{.collective = kind.collective,
                   .input = {call.input, call.input_count, dtype, device},
                   .output = {call.output, call.output_count, dtype, device},
                   .op = call.factor == nullptr ? Reduction(op) : Reduction::premul_sum(factor),
                   .root = call.root,
                   .peer = call.peer,
                   .direction = kind.direction,
                   .tag = call.tag,
                   .division = kind.division,
                   .input_counts = counts(call.input_counts),
                   .output_counts = counts(call.output_counts)},
                  {.timeout = timeout, .stream = {options.stream}}};
}

/// Several calls, and the options that they share.
struct ReadBatch {
  std::vector<Call> calls;
  CallOptions options;
};

Result<ReadBatch> read_batch(const accord_call_t* given, std::size_t count, const accord_call_options_t* given_options,
                             std::size_t ranks, std::string_view function) {
  ReadBatch batch;
  const auto* bytes = reinterpret_cast<const std::byte*>(given);
  const std::size_t stride = count == 0 ? 0 : given->struct_size;
  for (std::size_t i = 0; i < count; ++i) {
    const auto* call = reinterpret_cast<const accord_call_t*>(bytes + i * stride);
    if (call->struct_size != stride)
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("{}: call {} of {} has a struct_size of {}, but the first one has {}", function, i + 1,
                                count, call->struct_size, stride));
    Result<ReadCall> read = read_call(call, given_options, ranks, function);
    if (!read.ok()) return read.status().with_context(fmt::format("call {} of {}", i + 1, count));
    batch.calls.push_back(read->call);
    batch.options = read->options;
  }
  return batch;
}

std::size_t ranks_of(const accord_communicator_t* communicator) {
  return static_cast<std::size_t>(communicator->communicator.size());
}

/// The arguments of a function that takes several calls.
struct BatchArguments {
  std::string_view function;
  accord_communicator_t* communicator;
  const accord_call_t* calls;
  std::size_t count;
  const accord_call_options_t* options;
};

/// Reads the calls and returns the result of `body`. `filled`: the pointer to the function's result, which must not
/// be null.
template <typename Body>
accord_status_t answer_batch(const BatchArguments& given, accord::c::RequiredArgument filled, Body&& body) {
  const void* const calls = given.count == 0 ? &given : static_cast<const void*>(given.calls);
  return answer(given.function, {{"communicator", given.communicator}, {"calls", calls}, filled},
                [&](std::string_view function) -> Status {
                  ACCORD_ASSIGN_OR_RETURN(const ReadBatch read, read_batch(given.calls, given.count, given.options,
                                                                           ranks_of(given.communicator), function));
                  return body(read);
                });
}

}  // namespace

accord_status_t accord::c::run_call(std::string_view function, accord_communicator_t* communicator,
                                    const accord_call_t* call, const accord_call_options_t* options) {
  return answer(function, {{"communicator", communicator}, {"call", call}}, [&](std::string_view) -> Status {
    ACCORD_ASSIGN_OR_RETURN(const ReadCall read, read_call(call, options, ranks_of(communicator), function));
    return communicator->communicator.run(read.call, read.options);
  });
}

extern "C" accord_status_t accord_run(accord_communicator_t* communicator, const accord_call_t* call,
                                      const accord_call_options_t* options) {
  return accord::c::run_call(__func__, communicator, call, options);
}

extern "C" accord_status_t accord_start(accord_communicator_t* communicator, const accord_call_t* call,
                                        const accord_call_options_t* options, accord_work_t** work) {
  if (work != nullptr) *work = nullptr;
  return answer(__func__, {{"communicator", communicator}, {"call", call}, {"work", work}},
                [&](std::string_view function) -> Status {
                  ACCORD_ASSIGN_OR_RETURN(const ReadCall read,
                                          read_call(call, options, ranks_of(communicator), function));
                  *work = new accord_work{communicator->communicator.start(read.call, read.options)};
                  return {};
                });
}

extern "C" accord_status_t accord_recv_any(accord_communicator_t* communicator, void* buffer, size_t count,
                                           accord_dtype_t dtype, int32_t tag, const accord_call_options_t* options,
                                           int32_t* source) {
  if (source != nullptr) *source = -1;
  return answer(
      __func__, {{"communicator", communicator}, {"source", source}}, [&](std::string_view function) -> Status {
        accord_call_t call = ACCORD_CALL_INIT;
        call.kind = ACCORD_CALL_RECV;
        call.dtype = dtype;
        call.output = buffer;
        call.output_count = count;
        call.tag = tag;
        ACCORD_ASSIGN_OR_RETURN(const ReadCall read, read_call(&call, options, ranks_of(communicator), function));
        ACCORD_ASSIGN_OR_RETURN(*source,
                                communicator->communicator.recv_any(read.call.output, read.call.tag, read.options));
        return {};
      });
}

extern "C" accord_status_t accord_run_batch(accord_communicator_t* communicator, const accord_call_t* calls,
                                            size_t count, const accord_call_options_t* options) {
  constexpr accord::c::RequiredArgument kNothing{"", ""};
  return answer_batch({__func__, communicator, calls, count, options}, kNothing,
                      [&](const ReadBatch& read) { return communicator->communicator.run(read.calls, read.options); });
}

extern "C" accord_status_t accord_start_batch(accord_communicator_t* communicator, const accord_call_t* calls,
                                              size_t count, const accord_call_options_t* options,
                                              accord_work_t** work) {
  if (work != nullptr) *work = nullptr;
  return answer_batch({__func__, communicator, calls, count, options}, {"work", work}, [&](const ReadBatch& read) {
    *work = new accord_work{communicator->communicator.start(read.calls, read.options)};
    return Status();
  });
}

extern "C" accord_status_t accord_prepare(accord_communicator_t* communicator, const accord_call_t* calls, size_t count,
                                          const accord_call_options_t* options, accord_prepared_t** prepared) {
  if (prepared != nullptr) *prepared = nullptr;
  return answer_batch(
      {__func__, communicator, calls, count, options}, {"prepared", prepared}, [&](const ReadBatch& read) -> Status {
        ACCORD_ASSIGN_OR_RETURN(accord::Prepared checked, communicator->communicator.prepare(read.calls, read.options));
        *prepared = new accord_prepared{std::move(checked)};
        return {};
      });
}

extern "C" accord_status_t accord_prepared_run(accord_prepared_t* prepared) {
  return answer(__func__, {{"prepared", prepared}}, [&](std::string_view) { return prepared->prepared.run(); });
}

extern "C" accord_status_t accord_prepared_start(accord_prepared_t* prepared, accord_work_t** work) {
  if (work != nullptr) *work = nullptr;
  return answer(__func__, {{"prepared", prepared}, {"work", work}}, [&](std::string_view) -> Status {
    // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): answer() has rejected a null one
    *work = new accord_work{prepared->prepared.start()};
    return {};
  });
}

extern "C" void accord_prepared_free(accord_prepared_t* prepared) { delete prepared; }
