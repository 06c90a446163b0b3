// The same mixture of experts as an MPI program would do it: rows are put in the order of their experts, sent by
// MPI_Alltoallv, and grouped by expert where they arrive; on the way back, they are added in fp32. Cases as in
// cases.hpp: dispatch and combine with a map, prepare, step.
#include <mpi.h>

#include <bit>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "bench/expert/cases.hpp"
#include "bench/worker.hpp"

namespace {

using accord::bench::ExpertCase;
using accord::bench::kExperts;
using accord::bench::kTopK;
using Rows = std::vector<std::uint16_t>;

class Measuring {
 public:
  Measuring() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    local_ = kExperts / size_;
  }

  std::string measure(const accord::bench::Command& command) {
    const ExpertCase wanted = accord::bench::expert_case(command.collective);
    if (wanted.tokens != made_.tokens || wanted.hidden != made_.hidden) {
      made_ = wanted;
      hidden_ = static_cast<std::size_t>(wanted.hidden);
      choices_ = accord::bench::choices_of(rank_, wanted.tokens);
      prepare();
      tokens_.assign(static_cast<std::size_t>(wanted.tokens) * hidden_, 0x3F80);
      result_.assign(tokens_.size(), 0);
      out_.assign(choices_.size() * hidden_, 0);
      in_.assign(received_ * hidden_, 0);
      slots_.assign(received_ * hidden_, 0);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    return std::to_string(accord::bench::time_of(command.iterations, [&] {
      if (wanted.operation == "prepare" || wanted.operation == "step") prepare();
      if (wanted.operation == "dispatch" || wanted.operation == "step") dispatch();
      if (wanted.operation == "combine" || wanted.operation == "step") combine();
    }));
  }

 private:
  void prepare() {
    std::vector<int> per_expert(kExperts, 0), next(kExperts + 1, 0);
    for (const std::int32_t e : choices_) ++per_expert[e];
    std::partial_sum(per_expert.begin(), per_expert.end(), next.begin() + 1);
    position_.resize(choices_.size());
    for (std::size_t c = 0; c < choices_.size(); ++c) position_[c] = next[choices_[c]]++;
    // [source, local expert]
    theirs_.resize(static_cast<std::size_t>(size_ * local_));
    MPI_Alltoall(per_expert.data(), local_, MPI_INT, theirs_.data(), local_, MPI_INT, MPI_COMM_WORLD);
    send_counts_.assign(size_, 0);
    receive_counts_.assign(size_, 0);
    for (int r = 0; r < size_; ++r)
      for (int l = 0; l < local_; ++l) {
        send_counts_[r] += per_expert[r * local_ + l];
        receive_counts_[r] += theirs_[r * local_ + l];
      }
    received_ = static_cast<std::size_t>(std::accumulate(receive_counts_.begin(), receive_counts_.end(), 0));
    for (int* counts : {send_counts_.data(), receive_counts_.data()})
      for (int r = 0; r < size_; ++r) counts[r] *= static_cast<int>(hidden_);
    sends_.assign(size_, 0);
    receives_.assign(size_, 0);
    std::exclusive_scan(send_counts_.begin(), send_counts_.end(), sends_.begin(), 0);
    std::exclusive_scan(receive_counts_.begin(), receive_counts_.end(), receives_.begin(), 0);
  }

  void exchange(const Rows& from, const std::vector<int>& counts, const std::vector<int>& starts, Rows& to,
                const std::vector<int>& to_counts, const std::vector<int>& to_starts) {
    MPI_Alltoallv(from.data(), counts.data(), starts.data(), MPI_UINT16_T, to.data(), to_counts.data(),
                  to_starts.data(), MPI_UINT16_T, MPI_COMM_WORLD);
  }

  /// Calls copy(begin in the order of arrival, begin in the order of experts, rows) for the rows of each source and
  /// local expert.
  template <typename Copy>
  void for_each_piece(Copy copy) {
    std::vector<std::size_t> begins(theirs_.size());
    std::size_t arrived = 0, slot = 0;
    for (std::size_t i = 0; i < theirs_.size(); ++i) {
      begins[i] = arrived;
      arrived += static_cast<std::size_t>(theirs_[i]);
    }
    for (int l = 0; l < local_; ++l)
      for (int r = 0; r < size_; ++r) {
        const auto i = static_cast<std::size_t>(r * local_ + l);
        copy(begins[i], slot, static_cast<std::size_t>(theirs_[i]));
        slot += static_cast<std::size_t>(theirs_[i]);
      }
  }

  void dispatch() {
    for (std::size_t c = 0; c < choices_.size(); ++c)
      std::memcpy(&out_[static_cast<std::size_t>(position_[c]) * hidden_], &tokens_[c / kTopK * hidden_], 2 * hidden_);
    exchange(out_, send_counts_, sends_, in_, receive_counts_, receives_);
    for_each_piece([&](std::size_t arrived, std::size_t slot, std::size_t rows) {
      if (rows > 0) std::memcpy(&slots_[slot * hidden_], &in_[arrived * hidden_], 2 * rows * hidden_);
    });
  }

  void combine() {
    for_each_piece([&](std::size_t arrived, std::size_t slot, std::size_t rows) {
      if (rows > 0) std::memcpy(&in_[arrived * hidden_], &slots_[slot * hidden_], 2 * rows * hidden_);
    });
    exchange(in_, receive_counts_, receives_, out_, send_counts_, sends_);
    constexpr std::size_t kBlock = 1024;
    for (std::size_t t = 0; t < static_cast<std::size_t>(made_.tokens); ++t)
      for (std::size_t first = 0; first < hidden_; first += kBlock) {
        const std::size_t count = std::min(kBlock, hidden_ - first);
        float sums[kBlock] = {};
        for (std::size_t c = t * kTopK; c < (t + 1) * kTopK; ++c) {
          const std::uint16_t* const row = &out_[static_cast<std::size_t>(position_[c]) * hidden_ + first];
          for (std::size_t i = 0; i < count; ++i)
            sums[i] += std::bit_cast<float>(static_cast<std::uint32_t>(row[i]) << 16);
        }
        std::uint16_t* const to = &result_[t * hidden_ + first];
        for (std::size_t i = 0; i < count; ++i) {
          const auto bits = std::bit_cast<std::uint32_t>(sums[i]);
          to[i] = static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
        }
      }
  }

  int rank_ = 0, size_ = 1, local_ = kExperts;
  ExpertCase made_;
  std::size_t hidden_ = 0, received_ = 0;
  std::vector<std::int32_t> choices_;
  std::vector<int> position_, theirs_, send_counts_, receive_counts_, sends_, receives_;
  Rows tokens_, result_, out_, in_, slots_;
};

}  // namespace

int main(int, char** argv) {
  const int rank = accord::bench::number_of("OMPI_COMM_WORLD_RANK");
  accord::bench::pin_to_core(rank);
  MPI_Init(nullptr, nullptr);
  int code = 0;
  {
    Measuring measuring;
    code = accord::bench::serve(std::string(argv[1]) + "." + std::to_string(rank),
                                [&](const accord::bench::Command& command) { return measuring.measure(command); });
  }
  MPI_Finalize();
  return code;
}
