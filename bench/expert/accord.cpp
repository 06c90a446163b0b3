// accord's expert parallelism, and the limit set by memory. Cases (cases.hpp), "dispatch" and "combine" with a
// prepared map:
//   dispatch, combine           rows in windows
//   dispatch_private, ...       rows in private memory
//   prepare                     the map
//   step                        prepare, dispatch and combine, rows in windows
//   memcpy                      each rank copies as many bytes as it would receive
//   memory                      MiB of this rank beyond tokens, results and received rows, after the window cases ran
#include <malloc.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "accord/expert_parallel.hpp"
#include "bench/expert/cases.hpp"
#include "bench/worker.hpp"

namespace {

using namespace accord;

class Measuring {
 public:
  explicit Measuring(Communicator& comm) : comm_(comm) {}

  std::string measure(const bench::Command& command) {
    const bench::ExpertCase wanted = bench::expert_case(command.collective);
    Status status = make(wanted);
    if (status.ok()) status = comm_.barrier();
    if (wanted.operation == "memory") drop_private();
    if (status.ok() && wanted.operation == "memory") status = run("step");
    if (status.ok() && wanted.operation == "memory")
      return std::to_string(
          (resident() - before_ - 2.0 * static_cast<double>(tokens_.bytes()) - static_cast<double>(recv_.bytes())) /
          (1 << 20));
    if (wanted.operation == "memcpy" || wanted.operation.ends_with("_private")) {
      own_tokens_.assign(tokens_.count, 0x3F80);
      own_result_.assign(tokens_.count, 0);
      own_recv_.assign(recv_.count, 0);
    }
    const double microseconds = bench::time_of(command.iterations, [&] {
      if (status.ok()) status = run(wanted.operation);
    });
    return status.ok() ? std::to_string(microseconds) : "error " + status.to_string();
  }

 private:
  /// Creates groups, memory and a map for the tokens and hidden size of a case.
  Status make(const bench::ExpertCase& wanted) {
    if (group_ && wanted.tokens == made_.tokens && wanted.hidden == made_.hidden) return {};
    group_.reset();
    handle_.reset();
    recv_ = tokens_ = result_ = {};
    blocks_.clear();
    window_.reset();
    drop_private();
    made_ = wanted;
    before_ = resident();
    ACCORD_ASSIGN_OR_RETURN(group_, ExpertGroup::create(comm_, {.experts = bench::kExperts,
                                                                .top_k = bench::kTopK,
                                                                .hidden = wanted.hidden,
                                                                .max_tokens_per_rank = wanted.tokens}));
    ACCORD_ASSIGN_OR_RETURN(handle_, group_->make_handle());
    ids_ = bench::choices_of(comm_.rank(), wanted.tokens);
    ACCORD_RETURN_IF_ERROR(prepare());
    const auto row = static_cast<std::size_t>(wanted.hidden);
    const std::size_t tokens = static_cast<std::size_t>(wanted.tokens) * row;
    const std::size_t received = static_cast<std::size_t>(handle_->recv_rows()) * row;
    ACCORD_ASSIGN_OR_RETURN(window_, comm_.window(2 * (2 * tokens + received) + (1 << 16)));
    ACCORD_RETURN_IF_ERROR(group_->add_window(*window_));
    ACCORD_ASSIGN_OR_RETURN(tokens_, piece(tokens));
    ACCORD_ASSIGN_OR_RETURN(result_, piece(tokens));
    ACCORD_ASSIGN_OR_RETURN(recv_, piece(received));
    return {};
  }
  void drop_private() {
    for (auto* memory : {&own_tokens_, &own_result_, &own_recv_}) std::vector<std::uint16_t>().swap(*memory);
  }
  /// Returns the proportional set size (Pss) of this process, in bytes: shared pages count in part.
  static double resident() {
    malloc_trim(0);  // freed memory does not count
    std::ifstream file("/proc/self/smaps_rollup");
    for (std::string line; std::getline(file, line);)
      if (line.starts_with("Pss:")) return 1024.0 * std::atof(line.c_str() + 4);
    return 0;
  }
  Result<Buffer> piece(std::size_t count) {
    ACCORD_ASSIGN_OR_RETURN(WindowBlock block, window_->allocate(2 * count));
    std::memset(block.bytes().data(), 0, 2 * count);
    blocks_.push_back(block);
    return block.buffer(count, DType::kBFloat16);
  }
  static Buffer buffer(std::vector<std::uint16_t>& memory) {
    return {memory.data(), memory.size(), DType::kBFloat16, {}};
  }

  Status prepare() { return group_->prepare(*handle_, {.ids = {ids_.data(), ids_.size(), DType::kInt32}}); }
  Status run(const std::string& operation) {
    if (operation == "prepare") return prepare();
    if (operation == "dispatch") return group_->dispatch(*handle_, {.tokens = tokens_, .recv_tokens = recv_});
    if (operation == "combine") return group_->combine(*handle_, {.expert_out = recv_, .result = result_});
    if (operation == "dispatch_private")
      return group_->dispatch(*handle_, {.tokens = buffer(own_tokens_), .recv_tokens = buffer(own_recv_)});
    if (operation == "combine_private")
      return group_->combine(*handle_, {.expert_out = buffer(own_recv_), .result = buffer(own_result_)});
    if (operation == "memcpy") {
      std::memcpy(own_recv_.data(), recv_.data, recv_.bytes());
      return {};
    }
    if (operation != "step") return {StatusCode::kInvalidArgument, "there is no case " + operation};
    ACCORD_RETURN_IF_ERROR(prepare());
    ACCORD_RETURN_IF_ERROR(run("dispatch"));
    return run("combine");
  }

  Communicator& comm_;
  bench::ExpertCase made_;
  double before_ = 0;
  std::optional<ExpertGroup> group_;
  std::optional<ExpertHandle> handle_;
  std::optional<Window> window_;
  std::vector<WindowBlock> blocks_;
  std::vector<std::int32_t> ids_;
  Buffer tokens_, result_, recv_;
  std::vector<std::uint16_t> own_tokens_, own_result_, own_recv_;
};

}  // namespace

int main(int, char** argv) {
  bench::pin_to_core(bench::number_of("RANK"));
  Result<Communicator> comm = Communicator::from_environment();
  if (!comm.ok()) {
    std::fprintf(stderr, "%s\n", comm.status().to_string().c_str());
    return 1;
  }
  Measuring measuring(*comm);
  return bench::serve(std::string(argv[1]) + "." + std::to_string(comm->rank()),
                      [&](const bench::Command& command) { return measuring.measure(command); });
}
