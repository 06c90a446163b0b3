// xxHash and OpenSSL do the work. Both also hash an empty span, whose data() may be null.
#include "base/hash.hpp"

#include <openssl/sha.h>
#include <xxhash.h>
#ifdef ACCORD_HAS_XXH_DISPATCH
#include <xxh_x86dispatch.h>
#endif

#include <array>

namespace accord {
namespace {
constexpr char kHexDigits[] = "0123456789abcdef";
}  // namespace

std::uint64_t xxh3(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::string sha256_hex(std::span<const std::byte> bytes) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest;
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest.data());
  std::string text;
  text.reserve(2 * digest.size());
  for (const unsigned char byte : digest) {
    text += kHexDigits[byte >> 4];
    text += kHexDigits[byte & 15];
  }
  return text;
}

std::string hex64(std::uint64_t value) {
  std::string text(16, '0');
  for (std::size_t i = 0; i < 16; ++i) text[15 - i] = kHexDigits[(value >> (4 * i)) & 15];
  return text;
}

}  // namespace accord
