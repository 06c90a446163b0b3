#include "transport/ucx/hello.hpp"

#include <cstring>

namespace accord::transport::ucx {
namespace {

struct FixedPart {
  std::uint64_t stream = 0;
  std::int32_t rank = 0;
  std::uint32_t zero = 0;
  Cookie to = {};
  Cookie from = {};
};

}  // namespace

std::string encode(const Hello& hello) {
  const FixedPart fixed{.stream = hello.stream, .rank = hello.rank, .to = hello.to, .from = hello.from};
  return std::string(reinterpret_cast<const char*>(&fixed), sizeof fixed) + hello.worker_address;
}

std::optional<Hello> decode_hello(std::string_view text) {
  FixedPart fixed;
  if (text.size() <= sizeof fixed) return std::nullopt;
  std::memcpy(&fixed, text.data(), sizeof fixed);
  if (fixed.zero != 0) return std::nullopt;
  return Hello{.rank = fixed.rank,
               .to = fixed.to,
               .from = fixed.from,
               .stream = fixed.stream,
               .worker_address = std::string(text.substr(sizeof fixed))};
}

}  // namespace accord::transport::ucx
