#include "base/hash.hpp"

#include <gtest/gtest.h>

#include <string_view>

namespace accord {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// FIPS 180-2, appendix B.1, and the digest of an empty input.
TEST(Sha256, matches_the_published_digests) {
  EXPECT_EQ(sha256_hex(bytes_of("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex({}), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

// The value of an empty input with seed 0 is published with xxHash's own checks.
TEST(Xxh3, matches_the_published_value_and_detects_one_flipped_bit) {
  EXPECT_EQ(xxh3({}), 0x2D06800538D394C2u);
  std::string text(10000, 'x');
  const std::uint64_t before = xxh3(bytes_of(text));
  text[9999] = static_cast<char>(text[9999] ^ 1);
  EXPECT_NE(xxh3(bytes_of(text)), before);
}

TEST(Hex64, has_sixteen_digits) {
  EXPECT_EQ(hex64(0), "0000000000000000");
  EXPECT_EQ(hex64(0x0123456789abcdefu), "0123456789abcdef");
}

}  // namespace
}  // namespace accord
