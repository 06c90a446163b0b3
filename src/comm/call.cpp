// Finds only the mistakes that this rank can see by itself. Disagreement between ranks is found through the round
// words.
#include "comm/call.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <variant>

#include "base/element.hpp"
#include "base/hash.hpp"

namespace accord::comm {
namespace {

Status invalid(std::string what) { return Status(StatusCode::kInvalidArgument, std::move(what)); }

/// Checks that a value of an enum has a name, which uninitialized memory may not.
template <typename Enum>
Status check_number(std::string_view name, Enum value, int count) {
  if (static_cast<unsigned>(value) < static_cast<unsigned>(count)) [[likely]]
    return {};
  return invalid(fmt::format("{} {} does not exist", name, static_cast<int>(value)));
}

// Reads the fields of the caller's buffer in place; Channel::slot_of() says why.
template <typename AnyBuffer>
Status check_buffer(std::string_view name, const AnyBuffer& buffer) {
  ACCORD_RETURN_IF_ERROR(check_number("dtype", buffer.dtype, kDTypeCount));
  if (buffer.device.type != DeviceType::kCpu) [[unlikely]]
    ACCORD_RETURN_IF_ERROR(check_number("device type", buffer.device.type, kDeviceTypeCount));
  if (buffer.data == nullptr && buffer.count > 0)
    return invalid(fmt::format("{} is null, with a count of {}", name, buffer.count));
  constexpr std::size_t kSafeCount = SIZE_MAX >> 8;  // valid for every dtype; saves a division
  if (buffer.count > kSafeCount && buffer.count > SIZE_MAX / 2 / size_of(buffer.dtype)) [[unlikely]]
    return invalid(fmt::format("{} has an impossible count, {}", name, buffer.count));
  return {};
}

Status check_rank(std::string_view name, Rank rank, int size) {
  if (rank >= 0 && rank < size) return {};
  return invalid(fmt::format("{} {} is not a rank of the group, which has ranks 0 to {}", name, rank, size - 1));
}

/// Elements of one part, according to the buffers that this rank has.
std::size_t count_of(const Call& call, Rank rank, int size) {
  const plan::CollectiveTraits& traits = plan::traits_of(call.collective);
  const bool has_input = holds(traits.input, rank, call.root), has_output = holds(traits.output, rank, call.root);
  if (has_input && !traits.input.divided) return call.input.count;
  if (has_output && !traits.output.divided) return call.output.count;
  return has_input ? call.input.count / static_cast<std::size_t>(size) : 0;
}

Status check_count(std::string_view name, std::size_t count, const plan::BufferRole& role, std::size_t part, int size) {
  const std::size_t parts = role.divided ? static_cast<std::size_t>(size) : 1;
  if (count == parts * part) return {};
  return invalid(role.divided
                     ? fmt::format("{} has {} elements, expected {} ({} x {})", name, count, parts * part, parts, part)
                     : fmt::format("{} has {} elements, expected {}", name, count, part));
}

/// Checks that the counts of a divided buffer fit the buffer and the group.
Status check_parts(std::string_view name, std::size_t count, std::span<const std::size_t> parts, int size) {
  if (parts.size() != static_cast<std::size_t>(size))
    return invalid(
        fmt::format("{} counts of the {} are given, expected one for each of {} ranks", parts.size(), name, size));
  std::size_t sum = 0;
  for (const std::size_t part : parts)
    if (__builtin_add_overflow(sum, part, &sum)) return invalid(fmt::format("the counts of the {} overflow", name));
  if (sum == count) return {};
  return invalid(fmt::format("{} has {} elements, but its counts add up to {}", name, count, sum));
}

/// Checks a call whose parts have counts of their own: the counts are given for each divided buffer that this rank
/// has, and fit its other buffers.
Status check_counts_of_parts(const Call& call, Rank rank, int size, bool has_input, bool has_output) {
  const plan::CollectiveTraits& traits = plan::traits_of(call.collective);
  if (!traits.input.divided && !traits.output.divided) return invalid("it has no parts that counts could be given for");
  const bool input_parts = has_input && traits.input.divided, output_parts = has_output && traits.output.divided;
  if (!traits.input.divided && !call.input_counts.empty())
    return invalid("its input has no parts that counts could be given for");
  if (!traits.output.divided && !call.output_counts.empty())
    return invalid("its output has no parts that counts could be given for");
  if (input_parts) ACCORD_RETURN_IF_ERROR(check_parts("input", call.input.count, call.input_counts, size));
  if (output_parts) ACCORD_RETURN_IF_ERROR(check_parts("output", call.output.count, call.output_counts, size));
  if (!has_input || !has_output) return {};  // a rank that is not the root
  const auto me = static_cast<std::size_t>(rank);
  const std::size_t mine_in = input_parts ? call.input_counts[me] : call.input.count;
  const std::size_t mine_out = output_parts ? call.output_counts[me] : call.output.count;
  if (mine_in != mine_out)
    return invalid(
        fmt::format("this rank's own part has {} elements in the input, {} in the output", mine_in, mine_out));
  const bool same_parts = std::equal(call.input_counts.begin(), call.input_counts.end(), call.output_counts.begin(),
                                     call.output_counts.end());
  if (input_parts && output_parts && call.input.data == call.output.data && call.input.count > 0 && !same_parts)
    return invalid("in place it needs the same counts for input and output");
  return {};
}

/// Returns the number of elements before part `rank` of a divided buffer.
std::size_t offset_of_part(Rank rank, std::size_t part, std::span<const std::size_t> counts) {
  if (counts.empty()) return static_cast<std::size_t>(rank) * part;
  return std::accumulate(counts.begin(), counts.begin() + rank, std::size_t{0});
}

/// Checks that input and output do not overlap, or overlap so that the same element of both is the same memory. The
/// plans are proved for these two cases. For a rank that has both buffers.
Status check_overlap(const Call& call, Rank rank) {
  const ConstBuffer& in = call.input;
  const Buffer& out = call.output;
  if (in.count == 0 || out.count == 0 || has_disjoint_buffers(call)) return {};
  const auto* in_begin = static_cast<const std::byte*>(in.data);
  const auto* out_begin = static_cast<const std::byte*>(out.data);
  const std::size_t element = size_of(in.dtype);
  const plan::CollectiveTraits& traits = plan::traits_of(call.collective);
  const bool own_part = traits.input.divided != traits.output.divided;
  if (own_part && traits.input.divided) in_begin += offset_of_part(rank, out.count, call.input_counts) * element;
  if (own_part && traits.output.divided) out_begin += offset_of_part(rank, in.count, call.output_counts) * element;
  if (in_begin == out_begin) return {};
  return invalid(fmt::format("input and output overlap; either they must not overlap, or {}",
                             own_part ? "one must be this rank's part of the other" : "they must be the same memory"));
}

std::string names_of_ops(DType dtype) {
  std::string names;
  for (int i = 0; i < kReduceOpCount; ++i) {
    const auto op = static_cast<ReduceOp>(i);
    if (is_defined(op, dtype)) names += fmt::format("{}{}", names.empty() ? "" : ", ", to_string(op));
  }
  return names;
}

/// Returns the counts of the divided buffer if every rank has that buffer and the other one is not divided. Otherwise
/// returns none: then no rank knows the longest part.
std::span<const std::size_t> counts_known_to_all(const Call& call) {
  const plan::CollectiveTraits& traits = plan::traits_of(call.collective);
  if (traits.rooted || traits.input.divided == traits.output.divided) return {};
  return traits.input.divided ? call.input_counts : call.output_counts;
}

/// Checks that the op is defined for the input's dtype, and has a factor if it needs one.
Status check_reduction(const Call& call) {
  const ReduceOp op = call.op.op();
  const DType dtype = call.input.dtype;
  ACCORD_RETURN_IF_ERROR(check_number("op", op, kReduceOpCount));
  if (!is_defined(op, dtype))
    return invalid(
        fmt::format("{} has no meaning for {}, which has {}", to_string(op), to_string(dtype), names_of_ops(dtype)));
  if (op != ReduceOp::kPremulSum) [[likely]]
    return {};
  if (std::holds_alternative<std::monostate>(call.op.factor()))
    return invalid("premul_sum needs the factor of this rank: Reduction::premul_sum(factor)");
  if (const auto* buffer = std::get_if<ConstBuffer>(&call.op.factor())) {
    ACCORD_RETURN_IF_ERROR(check_buffer("factor", *buffer));
    if (buffer->device.type != DeviceType::kCpu && buffer->device != call.input.device)
      return invalid(fmt::format("the factor is on {}, the input is on {}", to_string(buffer->device),
                                 to_string(call.input.device)));
    if (buffer->count != 1 || buffer->dtype != dtype)
      return invalid(fmt::format("factor has {} x {}, expected 1 x {}", buffer->count, to_string(buffer->dtype),
                                 to_string(dtype)));
  } else if (std::get<std::complex<double>>(call.op.factor()).imag() != 0 && kind_of(dtype) != DTypeKind::kComplex) {
    return invalid(fmt::format("factor is a complex number, the input is {}", to_string(dtype)));
  }
  return {};
}

}  // namespace

std::string name_of(const Call& call) {
  if (call.direction != Direction::kNone) return call.direction == Direction::kSend ? "send" : "recv";
  return fmt::format("{}{}", to_string(call.collective), call.division == Division::kByCounts ? "_v" : "");
}

Status check_elements(std::string_view name, const ConstBuffer& buffer) { return check_buffer(name, buffer); }

Status check_memory(std::string_view name, const ConstBuffer& buffer) {
  ACCORD_RETURN_IF_ERROR(check_buffer(name, buffer));
  if (buffer.device.type == DeviceType::kCpu) return {};
  return Status(StatusCode::kUnsupported,
                fmt::format("{} is on {}; this call needs CPU memory", name, to_string(buffer.device)));
}

Status check_call(const Call& call, Rank rank, int size) {
  ACCORD_RETURN_IF_ERROR(check_number("collective", call.collective, kCollectiveCount));
  if ((call.collective == Collective::kSendRecv) != (call.direction != Direction::kNone))
    return invalid("a message must have a direction, and no other call may have one");
  const plan::CollectiveTraits& traits = plan::traits_of(call.collective);
  const ConstBuffer& in = call.input;
  const Buffer& out = call.output;
  if (call.direction != Direction::kNone) {
    if (call.division != Division::kEqual) return invalid("a message has no parts that counts could be given for");
    ACCORD_RETURN_IF_ERROR(check_rank("peer", call.peer, size));
    if (call.peer == rank) return invalid(fmt::format("peer {} is the caller itself", rank));
    if (call.tag < 0) return invalid(fmt::format("tag {} is negative", call.tag));
    if (call.direction == Direction::kSend) return check_buffer("input", in);
    return check_buffer("output", out);
  }
  if (traits.rooted) ACCORD_RETURN_IF_ERROR(check_rank("root", call.root, size));
  const bool has_input = holds(traits.input, rank, call.root), has_output = holds(traits.output, rank, call.root);
  if (has_input) ACCORD_RETURN_IF_ERROR(check_buffer("input", in));
  if (has_output) ACCORD_RETURN_IF_ERROR(check_buffer("output", out));
  if (call.division == Division::kByCounts) {
    ACCORD_RETURN_IF_ERROR(check_counts_of_parts(call, rank, size, has_input, has_output));
  } else {
    const std::size_t part = count_of(call, rank, size);
    if (has_input) ACCORD_RETURN_IF_ERROR(check_count("input", in.count, traits.input, part, size));
    if (has_output) ACCORD_RETURN_IF_ERROR(check_count("output", out.count, traits.output, part, size));
  }
  if (has_input && has_output) {
    if (in.dtype != out.dtype)
      return invalid(fmt::format("input is {}, output is {}", to_string(in.dtype), to_string(out.dtype)));
    if (in.device != out.device)
      return invalid(fmt::format("input is on {}, output is on {}", to_string(in.device), to_string(out.device)));
    if (in.data != out.data || in.count != out.count) ACCORD_RETURN_IF_ERROR(check_overlap(call, rank));
  }
  return traits.reduces ? check_reduction(call) : Status();
}

std::complex<double> factor_of(const Call& call) {
  if (call.op.op() != ReduceOp::kPremulSum) [[likely]]
    return 1.0;
  if (const auto* buffer = std::get_if<ConstBuffer>(&call.op.factor())) return number_at(buffer->data, buffer->dtype);
  return std::get<std::complex<double>>(call.op.factor());
}

exec::RequestRecord record_of(const Call& call, Rank rank, int size) {
  exec::RequestRecord record;
  record.collective = call.collective;
  if (call.direction != Direction::kNone) {
    const bool sends = call.direction == Direction::kSend;
    record.dtype = sends ? call.input.dtype : call.output.dtype;
    record.count = sends ? call.input.count : call.output.count;
    record.root = call.tag;
    return record;
  }
  const plan::CollectiveTraits& traits = plan::traits_of(call.collective);
  if (traits.rooted) record.root = call.root;
  if (traits.input.holders == plan::Holders::kNobody) return record;
  if (traits.reduces) record.op = call.op.op();
  record.dtype = holds(traits.input, rank, call.root) ? call.input.dtype : call.output.dtype;
  if (call.division == Division::kEqual) [[likely]] {
    record.count = count_of(call, rank, size);
    return record;
  }
  const std::span<const std::size_t> known_to_all = counts_known_to_all(call);
  if (known_to_all.empty()) {
    record.phase = exec::Phase::kCountsFirst;
  } else {
    record.phase = exec::Phase::kUnequalParts;
    record.count = *std::max_element(known_to_all.begin(), known_to_all.end());
    record.parts = xxh3(std::as_bytes(known_to_all));
  }
  return record;
}

plan::Extent extent_of(const Call& call, Rank rank) {
  const plan::CollectiveTraits& traits = plan::traits_of(call.collective);
  const bool has_input = holds(traits.input, rank, call.root), has_output = holds(traits.output, rank, call.root);
  const std::span<const std::size_t> known_to_all = counts_known_to_all(call);
  return {.input_count = has_input ? call.input.count : 0,
          .output_count = has_output ? call.output.count : 0,
          .input_parts = has_input ? call.input_counts : std::span<const std::size_t>(),
          .output_parts = has_output ? call.output_counts : std::span<const std::size_t>(),
          .longest_part = known_to_all.empty() ? 0 : *std::max_element(known_to_all.begin(), known_to_all.end())};
}

}  // namespace accord::comm
