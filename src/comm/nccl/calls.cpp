// Calls that only move data move it as bytes, whatever the dtype. A collective that NCCL lacks is a group of
// messages, or of collectives with one root each.
#include "comm/nccl/calls.hpp"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <complex>
#include <cstring>
#include <functional>
#include <optional>
#include <variant>

#include "base/element.hpp"
#include "plan/collective.hpp"

namespace accord::comm::nccl {
namespace {

/// NCCL's view of one element of a sum: `numbers` of `type`.
struct Element {
  DataType type;
  std::size_t numbers = 1;
};

constexpr int kFirstWithFloat8 = 22400;

std::optional<Element> element_of(DType dtype, int version) {
  switch (dtype) {
    case DType::kInt8: return Element{kInt8};
    case DType::kUInt8:
    case DType::kBool: return Element{kUint8};
    case DType::kInt32: return Element{kInt32};
    case DType::kUInt32: return Element{kUint32};
    case DType::kInt64: return Element{kInt64};
    case DType::kUInt64: return Element{kUint64};
    case DType::kFloat16: return Element{kFloat16};
    case DType::kBFloat16: return Element{kBfloat16};
    case DType::kFloat32: return Element{kFloat32};
    case DType::kFloat64: return Element{kFloat64};
    case DType::kComplex64: return Element{kFloat32, 2};
    case DType::kComplex128: return Element{kFloat64, 2};
    case DType::kFloat8E4M3FN: return version >= kFirstWithFloat8 ? std::optional(Element{kFloat8e4m3}) : std::nullopt;
    case DType::kFloat8E5M2: return version >= kFirstWithFloat8 ? std::optional(Element{kFloat8e5m2}) : std::nullopt;
    case DType::kInt16:
    case DType::kUInt16: return std::nullopt;
  }
  return std::nullopt;
}

/// Returns none for premul_sum, for which an operation is created.
std::optional<RedOp> op_of(ReduceOp op, DType dtype) {
  const DTypeKind kind = kind_of(dtype);
  const bool by_parts = kind == DTypeKind::kComplex;  // real and imaginary part separately
  switch (op) {
    case ReduceOp::kSum: return kind == DTypeKind::kBool ? kMax : kSum;
    case ReduceOp::kAvg: return kAvg;
    case ReduceOp::kProduct:
      if (by_parts) return std::nullopt;
      return kind == DTypeKind::kBool ? kMin : kProd;
    case ReduceOp::kMin: return kMin;
    case ReduceOp::kMax: return kMax;
    case ReduceOp::kBand: return kind == DTypeKind::kBool ? std::optional(kMin) : std::nullopt;
    case ReduceOp::kBor: return kind == DTypeKind::kBool ? std::optional(kMax) : std::nullopt;
    case ReduceOp::kBxor:
    case ReduceOp::kPremulSum: return std::nullopt;
  }
  return std::nullopt;
}

/// The operation of a call, for as long as the call is put into a stream.
class Operation {
 public:
  Operation(const Member& member, const Call& call) : member_(member) {
    if (call.op.op() != ReduceOp::kPremulSum) {
      number_ = *op_of(call.op.op(), call.input.dtype);
      return;
    }
    const DType dtype = call.input.dtype;
    std::array<std::byte, 16> factor = {};
    void* at = factor.data();
    Residence residence = kOnHost;
    if (const auto* given = std::get_if<ConstBuffer>(&call.op.factor())) {
      at = const_cast<void*>(given->data);  // only read
      residence = given->device.type == DeviceType::kCpu ? kOnHost : kOnDevice;
    } else {
      store_number(std::get<std::complex<double>>(call.op.factor()).real(), dtype, factor.data());
    }
    const Library& library = member.use.library();
    const int type = element_of(dtype, library.version)->type;
    status_ = member.use.result("RedOpCreatePreMulSum", library.call.RedOpCreatePreMulSum(&number_, at, type, residence,
                                                                                          member.use.communicator()));
    created_ = status_.ok();
  }
  ~Operation() {
    if (created_) (void)member_.use.library().call.RedOpDestroy(number_, member_.use.communicator());
  }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  int number() const { return number_; }
  const Status& status() const { return status_; }

 private:
  const Member& member_;
  int number_ = 0;
  bool created_ = false;
  Status status_;
};

/// Groups several calls into one.
Status together(const Member& member, const std::function<Status()>& put) {
  Use& use = member.use;
  ACCORD_RETURN_IF_ERROR(use.result("GroupStart", use.library().call.GroupStart()));
  const Status inside = put();
  const Status ended = use.result("GroupEnd", use.library().call.GroupEnd());
  return inside.ok() ? ended : inside;
}

/// The elements and bytes of each rank's part of a buffer.
struct Parts {
  std::span<const std::size_t> counts;  ///< empty: all parts have `count`
  std::size_t count = 0;
  std::size_t element_bytes = 1;

  std::size_t elements(Rank rank) const { return counts.empty() ? count : counts[static_cast<std::size_t>(rank)]; }
  std::size_t bytes(Rank rank) const { return elements(rank) * element_bytes; }
};

Parts parts_of(std::span<const std::size_t> counts, std::size_t total, int size, DType dtype) {
  return {.counts = counts, .count = total / static_cast<std::size_t>(size), .element_bytes = size_of(dtype)};
}

/// A call that is being put into a stream.
struct Putting {
  const Member& member;
  const Call& call;
  const std::byte* from;
  std::byte* to;
  void* stream;

  const Functions& nccl() const { return member.use.library().call; }
  Communicator* communicator() const { return member.use.communicator(); }
  Status send(const std::byte* at, std::size_t bytes, Rank to_rank) const {
    if (bytes == 0) return {};
    return member.use.result("Send", nccl().Send(at, bytes, kUint8, to_rank, communicator(), stream));
  }
  Status receive(std::byte* at, std::size_t bytes, Rank from_rank) const {
    if (bytes == 0) return {};
    return member.use.result("Recv", nccl().Recv(at, bytes, kUint8, from_rank, communicator(), stream));
  }
  /// Sends each rank its part of this rank's input, or receives each rank's part.
  Status send_parts(const Parts& parts, bool without_own) const {
    std::size_t offset = 0;
    for (Rank rank = 0; rank < member.size; ++rank) {
      if (rank != member.rank || !without_own) ACCORD_RETURN_IF_ERROR(send(from + offset, parts.bytes(rank), rank));
      offset += parts.bytes(rank);
    }
    return {};
  }
  Status receive_parts(const Parts& parts, bool without_own) const {
    std::size_t offset = 0;
    for (Rank rank = 0; rank < member.size; ++rank) {
      if (rank != member.rank || !without_own) ACCORD_RETURN_IF_ERROR(receive(to + offset, parts.bytes(rank), rank));
      offset += parts.bytes(rank);
    }
    return {};
  }
};

Status put_all_to_all(const Putting& put) {
  const Call& call = put.call;
  const Parts out = parts_of(call.input_counts, call.input.count, put.member.size, call.input.dtype);
  const Parts in = parts_of(call.output_counts, call.output.count, put.member.size, call.output.dtype);
  return together(put.member, [&]() -> Status {
    ACCORD_RETURN_IF_ERROR(put.send_parts(out, false));
    return put.receive_parts(in, false);
  });
}

/// An in-place root already has its own part.
Status put_gather(const Putting& put) {
  const Call& call = put.call;
  const bool is_root = put.member.rank == call.root;
  const Parts in = parts_of(call.output_counts, call.output.count, put.member.size, call.output.dtype);
  std::size_t own = 0;
  for (Rank rank = 0; is_root && rank < put.member.rank; ++rank) own += in.bytes(rank);
  const bool in_place = is_root && put.from == put.to + own;
  return together(put.member, [&]() -> Status {
    if (!in_place) ACCORD_RETURN_IF_ERROR(put.send(put.from, call.input.bytes(), call.root));
    return is_root ? put.receive_parts(in, in_place) : Status();
  });
}

Status put_scatter(const Putting& put) {
  const Call& call = put.call;
  const bool is_root = put.member.rank == call.root;
  const Parts out = parts_of(call.input_counts, call.input.count, put.member.size, call.input.dtype);
  std::size_t own = 0;
  for (Rank rank = 0; is_root && rank < put.member.rank; ++rank) own += out.bytes(rank);
  const bool in_place = is_root && put.to == put.from + own;
  return together(put.member, [&]() -> Status {
    if (is_root) ACCORD_RETURN_IF_ERROR(put.send_parts(out, in_place));
    return in_place ? Status() : put.receive(put.to, call.output.bytes(), call.root);
  });
}

Status put_all_gather(const Putting& put) {
  const Call& call = put.call;
  const Functions& nccl = put.nccl();
  Use& use = put.member.use;
  if (call.division == Division::kEqual) {
    const std::size_t bytes = call.input.bytes();
    return use.result("AllGather", nccl.AllGather(put.from, put.to, bytes, kUint8, put.communicator(), put.stream));
  }
  const Parts parts = parts_of(call.output_counts, call.output.count, put.member.size, call.output.dtype);
  return together(put.member, [&]() -> Status {
    std::byte* to = put.to;
    for (Rank root = 0; root < put.member.size; ++root) {
      const std::size_t bytes = parts.bytes(root);
      const void* from = root == put.member.rank ? put.from : to;
      if (bytes > 0)
        ACCORD_RETURN_IF_ERROR(
            use.result("Broadcast", nccl.Broadcast(from, to, bytes, kUint8, root, put.communicator(), put.stream)));
      to += bytes;
    }
    return {};
  });
}

Status put_reduce_scatter(const Putting& put, const Element& element, int op) {
  const Call& call = put.call;
  const Functions& nccl = put.nccl();
  Use& use = put.member.use;
  Communicator* const communicator = put.communicator();
  if (call.division == Division::kEqual) {
    const std::size_t count = call.output.count * element.numbers;
    return use.result("ReduceScatter",
                      nccl.ReduceScatter(put.from, put.to, count, element.type, op, communicator, put.stream));
  }
  const Parts parts = parts_of(call.input_counts, call.input.count, put.member.size, call.input.dtype);
  return together(put.member, [&]() -> Status {
    const std::byte* from = put.from;
    for (Rank root = 0; root < put.member.size; ++root) {
      const std::size_t count = parts.elements(root) * element.numbers;
      if (count > 0)
        ACCORD_RETURN_IF_ERROR(
            use.result("Reduce", nccl.Reduce(from, put.to, count, element.type, op, root, communicator, put.stream)));
      from += parts.bytes(root);
    }
    return {};
  });
}

Status put_reduction(const Putting& put) {
  const Call& call = put.call;
  const Functions& nccl = put.nccl();
  Use& use = put.member.use;
  Communicator* const communicator = put.communicator();
  const Operation op(put.member, call);
  ACCORD_RETURN_IF_ERROR(op.status());
  const Element element = *element_of(call.input.dtype, use.library().version);
  if (call.collective == Collective::kReduceScatter) return put_reduce_scatter(put, element, op.number());
  const std::size_t count = call.input.count * element.numbers;
  if (call.collective == Collective::kAllReduce)
    return use.result("AllReduce",
                      nccl.AllReduce(put.from, put.to, count, element.type, op.number(), communicator, put.stream));
  return use.result(
      "Reduce", nccl.Reduce(put.from, put.to, count, element.type, op.number(), call.root, communicator, put.stream));
}

}  // namespace

Status check_reduction(const Call& call, int version, int size) {
  if (!plan::traits_of(call.collective).reduces) return {};
  const DType dtype = call.input.dtype;
  const ReduceOp op = call.op.op();
  const bool is_premul = op == ReduceOp::kPremulSum && kind_of(dtype) == DTypeKind::kFloat;
  // A communicator of one rank scales by a kernel that NCCL's host code omits for 8-bit floats (2.24 to 2.30).
  const bool scales = is_premul || op == ReduceOp::kAvg;
  const bool scales_alone = scales && size == 1 && kind_of(dtype) == DTypeKind::kFloat && size_of(dtype) == 1;
  if (element_of(dtype, version) && (is_premul || op_of(op, dtype)) && !scales_alone) return {};
  return Status(StatusCode::kUnsupported, fmt::format("NCCL {} has no {} of {}{}", version_text(version), to_string(op),
                                                      to_string(dtype), scales_alone ? " of one rank" : ""));
}

Status put_collective(const Member& member, const Call& call, const void* from, Stream stream) {
  const Putting put{.member = member,
                    .call = call,
                    .from = static_cast<const std::byte*>(from),
                    .to = static_cast<std::byte*>(call.output.data),
                    .stream = stream.handle};
  switch (call.collective) {
    case Collective::kBroadcast:
      return member.use.result("Broadcast", put.nccl().Broadcast(put.to, put.to, call.output.bytes(), kUint8, call.root,
                                                                 put.communicator(), put.stream));
    case Collective::kAllGather: return put_all_gather(put);
    case Collective::kReduceScatter:
    case Collective::kAllReduce:
    case Collective::kReduce: return put_reduction(put);
    case Collective::kGather: return put_gather(put);
    case Collective::kScatter: return put_scatter(put);
    case Collective::kAllToAll: return put_all_to_all(put);
    case Collective::kBarrier:
    case Collective::kSendRecv: break;
  }
  return Status(StatusCode::kInternal, fmt::format("{} is not a collective on buffers", to_string(call.collective)));
}

Status put_message(const Member& member, const Call& call, Rank peer, Stream stream) {
  const Putting put{.member = member, .call = call, .from = nullptr, .to = nullptr, .stream = stream.handle};
  if (call.direction == Direction::kSend)
    return put.send(static_cast<const std::byte*>(call.input.data), call.input.bytes(), peer);
  return put.receive(static_cast<std::byte*>(call.output.data), call.output.bytes(), peer);
}

}  // namespace accord::comm::nccl
