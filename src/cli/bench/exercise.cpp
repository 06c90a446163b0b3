// Calls are repeated back to back, as in nccl-tests. In-place calls follow the definition of each collective: the
// input of all_gather and gather is this rank's part of the output, and the output of reduce_scatter and scatter is
// this rank's part of the input. Messages follow the OSU micro-benchmarks: a ping-pong, or a window of concurrent
// messages, all from one buffer and into one buffer. A window in one direction ends with a short reply.
#include "cli/bench/exercise.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/text.hpp"
#include "plan/collective.hpp"

namespace accord::cli {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kWindow = 64;  // messages in flight, as in osu_bw
constexpr std::size_t kMaxBytesInFlight = std::size_t{64}
                                          << 20;  // bytes in flight: large messages must not take seconds

int window_of(std::size_t bytes) {
  return static_cast<int>(std::clamp<std::size_t>(kMaxBytesInFlight / std::max<std::size_t>(bytes, 1), 1, kWindow));
}

KnownCall known_call(const ExerciseRequest& request) {
  const bool moves = request.operation.collective != Collective::kBarrier;
  return {.collective = request.operation.collective,
          .dtype = request.dtype,
          .op = request.op,
          .size = request.ranks,
          .root = 0,
          .count = moves ? request.bytes / size_of(request.dtype) : 0};
}

}  // namespace

Exercise::Exercise(const ExerciseRequest& request, Rank rank)
    : request_(request), rank_(rank), reference_(known_call(request)) {}

Result<std::unique_ptr<Exercise>> Exercise::create(const ExerciseRequest& request, Rank rank) {
  std::unique_ptr<Exercise> exercise(new Exercise(request, rank));
  ACCORD_RETURN_IF_ERROR(exercise->allocate());
  exercise->messages_ = exercise->messages();
  return exercise;
}

Status Exercise::allocate() {
  const auto allocate_buffer = [&](Memory& memory, std::size_t count) {
    const std::size_t bytes = (count * size_of(request_.dtype) + kPage) / kPage * kPage;
    memory.reset(std::aligned_alloc(kPage, bytes));
    if (memory != nullptr) std::memset(memory.get(), 0, bytes);
    return memory != nullptr;
  };
  const KnownCall& call = reference_.call();
  const bool is_message = call.collective == Collective::kSendRecv;
  const std::size_t inputs = is_message ? call.count : reference_.input_count(rank_);
  const std::size_t outputs = is_message ? call.count : reference_.output_count(rank_);
  const plan::CollectiveTraits& traits = plan::traits_of(call.collective);
  const bool shared = (request_.in_place && !is_message) || traits.one_buffer;
  if (!allocate_buffer(memory_, shared ? std::max(inputs, outputs) : inputs) ||
      (!shared && !allocate_buffer(more_memory_, outputs)))
    return Status(StatusCode::kResourceExhausted,
                  fmt::format("no memory for buffers of {}", bytes_text((inputs + outputs) * size_of(request_.dtype))));
  input_ = buffer(memory_.get(), inputs);
  output_ = buffer(shared ? memory_.get() : more_memory_.get(), outputs);
  if (!shared || traits.one_buffer || traits.input.divided == traits.output.divided) return {};
  const std::size_t mine = static_cast<std::size_t>(rank_) * call.count * size_of(request_.dtype);
  Buffer& part = traits.input.divided ? output_ : input_;
  const Buffer& whole = traits.input.divided ? input_ : output_;
  if (part.count > 0 && whole.count > 0) part.data = static_cast<std::byte*>(part.data) + mine;
  return {};
}

Call Exercise::call() const {
  const KnownCall& known = reference_.call();
  const plan::CollectiveTraits& traits = plan::traits_of(known.collective);
  Call call{.collective = known.collective, .input = input_, .output = output_, .op = known.op, .root = known.root};
  if (traits.one_buffer) call.input = output_;
  if (traits.reduces && known.op == ReduceOp::kPremulSum) call.op = Reduction::premul_sum(kKnownFactor);
  return call;
}

// The messages that this rank sends and receives concurrently.
std::vector<Call> Exercise::messages() const {
  std::vector<Call> calls;
  const Traffic traffic = request_.operation.traffic;
  if ((traffic != Traffic::kOneWay && traffic != Traffic::kBothWays) || rank_ > 1) return calls;
  const Rank peer = 1 - rank_;
  for (int i = 0; i < window_of(request_.bytes); ++i) {
    if (rank_ == 0 || traffic == Traffic::kBothWays) calls.push_back(Call::send(input_, peer));
    if (rank_ == 1 || traffic == Traffic::kBothWays) calls.push_back(Call::recv(output_, peer));
  }
  return calls;
}

int Exercise::operations_per_call() const {
  switch (request_.operation.traffic) {
    case Traffic::kCollective: return 1;
    case Traffic::kPingPong: return 2;
    case Traffic::kOneWay:
    case Traffic::kBothWays: return window_of(request_.bytes);
  }
  return 1;
}

Status Exercise::exchange(Communicator& comm) {
  const Rank peer = 1 - rank_;
  if (request_.operation.traffic == Traffic::kPingPong) {
    if (rank_ == 0) ACCORD_RETURN_IF_ERROR(comm.send(input_, peer));
    ACCORD_RETURN_IF_ERROR(comm.recv(output_, peer));
    return rank_ == 1 ? comm.send(input_, peer) : Status();
  }
  ACCORD_RETURN_IF_ERROR(comm.run(messages_));
  if (request_.operation.traffic == Traffic::kBothWays) return {};
  std::uint8_t answer = 0;
  const Buffer one{&answer, 1, DType::kUInt8};
  return rank_ == 0 ? comm.recv(one, peer) : comm.send(one, peer);
}

Status Exercise::repeat(Communicator& comm, int calls) {
  if (request_.operation.traffic == Traffic::kCollective) {
    const Call call = this->call();
    for (int i = 0; i < calls; ++i) ACCORD_RETURN_IF_ERROR(comm.run(call));
    return {};
  }
  for (int i = 0; i < calls && rank_ < 2; ++i) ACCORD_RETURN_IF_ERROR(exchange(comm));
  return {};
}

Result<WrongElements> Exercise::check(Communicator& comm) {
  const bool is_message = request_.operation.traffic != Traffic::kCollective;
  if (output_.bytes() > 0) std::memset(output_.data, 0, output_.bytes());
  const bool one_buffer = plan::traits_of(reference_.call().collective).one_buffer;
  if (!one_buffer || rank_ == reference_.call().root)
    reference_.fill(is_message ? 0 : rank_, one_buffer ? output_ : input_);
  ACCORD_RETURN_IF_ERROR(comm.barrier());
  ACCORD_RETURN_IF_ERROR(repeat(comm, 1));
  const bool receives = !is_message || rank_ == 1 || (rank_ == 0 && request_.operation.traffic != Traffic::kOneWay);
  return receives ? reference_.check(rank_, output_) : WrongElements{};
}

}  // namespace accord::cli
