// Dispatch and combine of an expert group (32 experts, 8 of them for each token at random, rows of bfloat16), beside an
// all_to_all of NCCL that moves as many rows in equal parts, and a copy of the received rows inside one GPU. Each rank
// has a GPU of its own, as expert groups require. All calls are measured in CUDA graphs as well, where their callers
// cost nothing.
#include <algorithm>
#include <string>
#include <vector>

#include "accord/expert_parallel.hpp"
#include "bench/expert/cases.hpp"
#include "bench/gpu/cuda/gpu.hpp"
#include "device/memory.hpp"

namespace accord::bench {
namespace {

struct Case {
  int tokens, hidden;
};
constexpr Case kCases[] = {{8, 7168}, {128, 7168}, {4096, 7168}};
constexpr Case kQuickCases[] = {{8, 64}};

/// A rank's buffers and calls of one case.
class Calls {
 public:
  Calls(Communicator& comm, const Place& place, const Case& of)
      : comm_(comm),
        place_(place),
        hidden_(static_cast<std::size_t>(of.hidden)),
        tokens_(static_cast<std::size_t>(of.tokens)),
        group_(value_of(ExpertGroup::create(comm, {.experts = kExperts,
                                                   .top_k = kTopK,
                                                   .hidden = of.hidden,
                                                   .max_tokens_per_rank = of.tokens,
                                                   .device = place.device}))),
        handle_(value_of(group_.make_handle())) {
    const std::vector<std::int32_t> ids = choices_of(comm.rank(), of.tokens);
    ids_ = memory_of(ids.size() * sizeof(ids[0]));
    check(place.runtime.copy(ids_.data(), ids.data(), ids_.size(), place.device, place.stream));
    prepare();
    check(handle_.fetch(place.stream));  // also waits for the copy
    rows_ = static_cast<std::size_t>(handle_.recv_rows());
    // The all_to_all sends as many rows as the group, in equal parts.
    part_ = tokens_ * kTopK / static_cast<std::size_t>(comm.size());
    const std::size_t most = std::max(rows_, part_ * static_cast<std::size_t>(comm.size()));
    values_ = memory_of(tokens_ * hidden_ * 2);
    result_ = memory_of(tokens_ * hidden_ * 2);
    received_ = memory_of(most * hidden_ * 2);
    other_ = memory_of(most * hidden_ * 2);
  }

  std::size_t bytes() const { return rows_ * hidden_ * 2; }
  void prepare() { check(group_.prepare(handle_, {.ids = buffer(ids_, DType::kInt32), .stream = stream()})); }
  void dispatch() {
    check(group_.dispatch(
        handle_, {.tokens = rows(values_, tokens_), .recv_tokens = rows(received_, rows_), .stream = stream()}));
  }
  void combine() {
    check(group_.combine(handle_,
                         {.expert_out = rows(received_, rows_), .result = rows(result_, tokens_), .stream = stream()}));
  }
  void step() {
    prepare();
    dispatch();
    combine();
  }
  void all_to_all() {
    const std::size_t all = part_ * static_cast<std::size_t>(comm_.size());
    check(comm_.all_to_all(rows(received_, all), rows(other_, all), {.stream = stream()}));
  }
  void copy() { check(place_.runtime.copy(other_.data(), received_.data(), bytes(), place_.device, place_.stream)); }

 private:
  Stream stream() const { return place_.stream; }
  device::Memory memory_of(std::size_t bytes) const {
    device::Memory memory = value_of(device::Memory::allocate(place_.runtime, place_.device, bytes, "the benchmark"));
    check(place_.runtime.fill(memory.data(), 0, bytes, place_.device, place_.stream));
    return memory;
  }
  Buffer buffer(const device::Memory& memory, DType dtype) const {
    return {memory.data(), memory.size() / size_of(dtype), dtype, place_.device};
  }
  Buffer rows(const device::Memory& memory, std::size_t count) const {
    return {memory.data(), count * hidden_, DType::kBFloat16, place_.device};
  }

  Communicator& comm_;
  const Place& place_;
  const std::size_t hidden_, tokens_;
  std::size_t rows_ = 0, part_ = 0;
  device::Memory ids_, values_, result_, received_, other_;
  ExpertGroup group_;
  ExpertHandle handle_;
};

Status run_rank(Communicator& comm, const Place& place, const Case& of, const Options& options) {
  Calls calls(comm, place, of);
  struct Contender {
    const char *operation, *by;
    void (Calls::*put)();
  };
  std::vector<Contender> contenders = {{"dispatch", "accord", &Calls::dispatch}, {"combine", "accord", &Calls::combine},
                                       {"prepare", "accord", &Calls::prepare},   {"step", "accord", &Calls::step},
                                       {"dispatch", "copy", &Calls::copy},       {"combine", "copy", &Calls::copy}};
  if (comm.size() > 1 && nccl().ok())
    for (const char* const operation : {"dispatch", "combine"})
      contenders.push_back({operation, "nccl all_to_all", &Calls::all_to_all});
  const std::string tokens = " of " + std::to_string(of.tokens) + " tokens";
  const int repeated = options.quick ? 2 : of.tokens > 1000 ? 20 : 100;
  for (const Contender& contender : contenders)
    for (const bool in_graph : {false, true}) {
      const std::function<void()> put = [&] { (calls.*contender.put)(); };
      put();
      meet(comm, place);
      const Figure figure = in_graph ? measure_in_graph(comm, place, repeated, put) : measure(place, repeated, put);
      if (comm.rank() == 0)
        print(comm.size(), placement_of(comm.size()), contender.operation + tokens + (in_graph ? ", in a graph" : ""),
              calls.bytes(), contender.by, figure);
    }
  meet(comm, place);
  return {};
}

}  // namespace

int run_experts(const Options& options) {
  if (!each_has_a_gpu(options.ranks)) {
    std::fprintf(stderr, "bench_gpu: skipped: expert groups need a GPU for each of the %d ranks\n", options.ranks);
    return kSkipped;
  }
  const std::vector<Case> cases = options.quick ? std::vector<Case>(std::begin(kQuickCases), std::end(kQuickCases))
                                                : std::vector<Case>(std::begin(kCases), std::end(kCases));
  const CommunicatorOptions by_nccl{.timeout = std::chrono::seconds(60),
                                    .select = "all_to_all[memory=cuda]:0-inf=nccl",
                                    .hints = options.quick ? "max_ctas=2" : ""};
  for (const Case& each : cases)
    check(on_threads(options.ranks, GpuUse::kApart, by_nccl,
                     [&](Communicator& comm, const Place& place) { return run_rank(comm, place, each, options); }));
  return 0;
}

}  // namespace accord::bench
