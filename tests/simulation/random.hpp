#pragma once
// The one source of chance in a run.

#include <bit>
#include <cstdint>

namespace accord::simulation {

/// xoshiro256++ by Blackman and Vigna, seeded by splitmix64.
class Random {
 public:
  explicit Random(std::uint64_t seed) {
    for (std::uint64_t& word : state_) {
      seed += 0x9e3779b97f4a7c15;
      std::uint64_t mixed = seed;
      mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
      mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
      word = mixed ^ (mixed >> 31);
    }
  }

  std::uint64_t next() {
    const std::uint64_t result = std::rotl(state_[0] + state_[3], 23) + state_[0];
    const std::uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

  /// 0, 1, ..., limit - 1. REQUIRES: limit >= 1.
  std::uint64_t below(std::uint64_t limit) {
    return static_cast<std::uint64_t>((static_cast<Wide>(next()) * limit) >> 64);
  }
  /// `least`, ..., `most`.
  std::int64_t between(std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(below(static_cast<std::uint64_t>(most - least) + 1));
  }
  /// `least`, ..., `most`, where each doubling is as likely as any other. REQUIRES: least >= 1.
  std::int64_t spread(std::int64_t least, std::int64_t most) {
    const auto doublings = static_cast<std::int64_t>(std::bit_width(static_cast<std::uint64_t>(most / least)));
    const std::int64_t upper = least << between(0, doublings - 1);
    return between(upper, upper < most / 2 ? 2 * upper - 1 : most);
  }
  bool one_in(std::uint64_t limit) { return below(limit) == 0; }

 private:
  __extension__ using Wide = unsigned __int128;

  std::uint64_t state_[4];
};

}  // namespace accord::simulation
