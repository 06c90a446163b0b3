#pragma once
// Shared by the contenders of the expert benchmark: the routing, and the names of cases.
//
// A case is "dispatch/128/7168": the operation, tokens of each rank, hidden size. All cases have 32 experts, each
// token chooses 8 of them, and rows are bfloat16.

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace accord::bench {

inline constexpr int kExperts = 32, kTopK = 8;

struct ExpertCase {
  std::string operation;
  int tokens = 0;
  int hidden = 0;
  bool operator==(const ExpertCase&) const = default;
};

inline ExpertCase expert_case(std::string name) {
  std::replace(name.begin(), name.end(), '/', ' ');
  std::istringstream words(name);
  ExpertCase parsed;
  words >> parsed.operation >> parsed.tokens >> parsed.hidden;
  return parsed;
}

/// Returns [tokens, kTopK]: different experts for each token, random and unordered.
inline std::vector<std::int32_t> choices_of(int rank, int tokens) {
  std::mt19937 random(static_cast<unsigned>(1234 + rank));
  std::vector<std::int32_t> experts(kExperts), choices;
  std::iota(experts.begin(), experts.end(), 0);
  for (int t = 0; t < tokens; ++t) {
    for (int k = 0; k < kTopK; ++k) std::swap(experts[k], experts[k + random() % (kExperts - k)]);
    choices.insert(choices.end(), experts.begin(), experts.begin() + kTopK);
  }
  return choices;
}

}  // namespace accord::bench
