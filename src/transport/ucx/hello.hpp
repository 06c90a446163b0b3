#pragma once
// The hello of a rank of transport ucx that calls a peer.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "accord/status.hpp"
#include "transport/tcp/call.hpp"

namespace accord::transport::ucx {

/// A random word as text, which a caller must have read in the descriptor.
using Cookie = std::array<char, tcp::kCookieBytes>;

/// The sender's identity, with proof that it has read the receiver's descriptor and wrote its own, and its address in
/// UCX.
struct Hello {
  std::int32_t rank = 0;
  Cookie to = {};
  Cookie from = {};
  std::uint64_t stream = 0;
  std::string worker_address = {};
};

std::string encode(const Hello& hello);
/// Returns nullopt if `text` is not a hello.
std::optional<Hello> decode_hello(std::string_view text);

}  // namespace accord::transport::ucx
