#pragma once
// Calls between processes over TCP, without blocking: the caller says hello, and the other side acknowledges it.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "accord/status.hpp"
#include "base/clock.hpp"
#include "base/fd.hpp"
#include "base/unshared_fd.hpp"

namespace accord::transport::tcp {

inline constexpr std::size_t kCookieBytes = 32;
/// Random text, which a caller must have read where the other side published it.
Result<std::string> random_cookie();

inline constexpr std::size_t kMaxHelloBytes = std::size_t{128} << 10;

/// A non-blocking listener on all addresses of this host, and its port.
struct Listener {
  UnsharedFd socket;
  std::uint16_t port = 0;
};
Result<Listener> listen_for_calls();
/// The next waiting connection; invalid if there is none.
Result<UniqueFd> accept_call(int listener);

/// A call to a listener: tries its addresses in turn, says hello, and waits for the acknowledgement.
class OutgoingCall {
 public:
  /// `hello`: 1 to kMaxHelloBytes bytes. REQUIRES: there are addresses.
  OutgoingCall(std::vector<std::string> addresses, std::uint16_t port, std::string_view hello);

  /// Proceeds as far as possible. Fails only for a reason in this process.
  Status advance();
  bool is_acknowledged() const { return stage_ == Stage::kAcknowledged; }
  /// Every address that can be reached from here refused: nobody listens there any more.
  bool refused() const { return stage_ == Stage::kRefused; }
  /// The descriptor to poll; -1 if none.
  int fd() const { return socket_.get(); }
  short events() const;
  UnsharedFd release_socket() { return std::move(socket_); }

 private:
  enum class Stage : std::uint8_t { kDial, kConnecting, kSpeaking, kListening, kAcknowledged, kRefused };
  /// How an address failed.
  enum class Failure : std::uint8_t {
    kRefused,      ///< nobody listens there
    kUnreachable,  ///< there is no way from here
    kOther         ///< it may still answer
  };
  static Failure failure_of(int error);
  Status dial();
  void next_address(Failure failure);

  std::vector<std::string> addresses_;
  std::uint16_t port_;
  std::string text_;
  std::size_t sent_ = 0;
  std::size_t at_ = 0;
  std::size_t refusals_ = 0;     ///< since an address failed in another way
  std::size_t unreachable_ = 0;  ///< likewise
  Stage stage_ = Stage::kDial;
  Deadline address_deadline_ = Deadline::never();  ///< time left for the current address
  UnsharedFd socket_;
};

/// An incoming connection.
class IncomingCall {
 public:
  explicit IncomingCall(UniqueFd socket) : socket_(std::move(socket)) {}
  /// Reads what has arrived. Returns false if it is not a hello or the connection has ended.
  bool advance();
  bool has_hello() const { return complete_; }
  /// REQUIRES: has_hello().
  const std::string& hello() const { return hello_; }
  /// Tells the caller that its hello arrived.
  void acknowledge();
  int fd() const { return socket_.get(); }
  UnsharedFd release_socket() { return std::move(socket_); }

 private:
  UnsharedFd socket_;
  std::string hello_;
  bool complete_ = false;
};

}  // namespace accord::transport::tcp
