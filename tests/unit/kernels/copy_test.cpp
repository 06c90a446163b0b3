// Copies with both kinds of store: every length and alignment around the vector sizes. Nothing outside is touched.

#include "kernels/copy.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "every_instruction_set.hpp"

namespace accord::kernels {
namespace {

class Copy : public EveryInstructionSet {};

TEST_P(Copy, moves_exactly_the_requested_bytes) {
  constexpr std::size_t kMargin = 128;
  std::mt19937 random(1);
  for (const std::size_t bytes :
       {0UL, 1UL, 63UL, 64UL, 1000UL, 1023UL, 1024UL, 1025UL, 1087UL, 1500UL, 4096UL, 70001UL}) {
    for (const std::size_t shift : {0UL, 1UL, 17UL, 63UL}) {
      for (const Store store : {Store::kTemporal, Store::kNonTemporal}) {
        std::vector<unsigned char> from(bytes + 2 * kMargin), to(bytes + 2 * kMargin, 0xAB);
        for (unsigned char& byte : from) byte = static_cast<unsigned char>(random());
        std::vector<unsigned char> want = to;
        if (bytes > 0) std::memcpy(want.data() + shift, from.data() + 5, bytes);
        copy(to.data() + shift, from.data() + 5, bytes, store);
        ASSERT_EQ(to, want) << bytes << " bytes at " << shift;
      }
    }
  }
}

TEST_P(Copy, onto_itself_changes_nothing) {
  std::vector<int> data(5000, 3);
  copy(data.data(), data.data(), data.size() * sizeof(int), Store::kNonTemporal);
  EXPECT_EQ(data, std::vector<int>(5000, 3));
}

ACCORD_ON_EVERY_INSTRUCTION_SET(Copy);

}  // namespace
}  // namespace accord::kernels
