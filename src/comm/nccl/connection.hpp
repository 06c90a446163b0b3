#pragma once
// An NCCL communicator whose calls can be ended from other threads.

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "accord/status.hpp"
#include "base/clock.hpp"
#include "comm/nccl/library.hpp"
#include "device/runtime.hpp"

namespace accord::comm::nccl {

/// Asked about once a millisecond by a thread that waits for `function` of NCCL: returns why it should stop waiting, or
/// ok.
using WaitCheck = std::function<Status(std::string_view function)>;

/// The arguments of ncclConfig_t, with their texts.
struct Settings {
  Config values;
  std::string net_name;  ///< empty: NCCL's choice

  /// Valid as long as this object.
  Config config() const {
    Config config = values;
    config.net_name = net_name.empty() ? nullptr : net_name.c_str();
    return config;
  }
};

/// Where the calls on a communicator are made. The device is current during them.
struct Place {
  const Library& library;
  device::Runtime& runtime;
  Device device;
};

/// One communicator. Its calls block. Those that create, split or shrink it or register windows wait for all ranks, so
/// they run in threads of their own, whose callers can stop waiting. Collectives run on the caller's thread (class
/// Use); they wait for other ranks only where they connect, or while a stream is full. One thread at a time is in a
/// call.
///
/// Any thread may call any method. No lock is held during a call of NCCL, so end() never waits for one.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  /// kNew -> kReady -> kEnding -> kEnded; kNew -> kEnding; kEnding -> kRevoked -> kEnding. A communicator of another
  /// owner goes from kReady to kEnded.
  enum class State { kNew, kReady, kEnding, kRevoked, kEnded };

  /// One that connect() or make_child() connects.
  static std::shared_ptr<Connection> create(const Place& place);
  /// One of another owner, who also ends it.
  static std::shared_ptr<Connection> borrow(const Place& place, Communicator* communicator);
  /// REQUIRES: it has ended, was not connected, or is borrowed.
  ~Connection() = default;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  bool is_borrowed() const { return is_borrowed_; }

  /// Begins to connect it as `rank` of `size` ranks.
  void begin_connecting(const UniqueId& id, Rank rank, int size, const Settings& settings);
  /// Waits for begin_connecting(). After an error the connection has ended, or is about to.
  Status finish_connecting(const WaitCheck& check);
  /// Stores a communicator made from `parent` in `*child`, by one function of NCCL. Its code is returned.
  using MakeChild = std::function<int(Communicator* parent, Communicator** child, Config* config)>;
  enum class Purpose { kConnecting, kCalling, kShrinking };
  /// Makes `child`, which is new, from this one, which may be revoked for kShrinking. `make` may store null. After an
  /// error `child` has ended, or is about to, and this one may still be in the call.
  Status make_child(Purpose purpose, std::string_view function, const std::shared_ptr<Connection>& child,
                    const Settings& settings, MakeChild make, const WaitCheck& check);
  /// Runs a call that waits for other ranks. Objects in which it stores results are captured by value; they live as
  /// long as NCCL may write to them. After an error this connection may still be in the call.
  Status run(std::string_view function, std::function<int(Communicator*)> call, const WaitCheck& check);

  /// Calls on it are captured, from now on: graphs may use it until they are destroyed.
  void set_captured();
  /// Returns an error of operations that were put into streams; ok while another thread is in a call.
  Status asynchronous_error();

  /// Whether a communicator remains after end().
  enum class Rest { kNone, kRevoked };
  /// Makes calls return, also those in progress, and ends operations in streams without a result. Returns at once; a
  /// thread of its own does the work. Without one nothing happens, and a later call tries again. `rest` kRevoked:
  /// revoked instead of aborted, if the library can do that.
  void end(Rest rest);
  /// Waits until end() is done. Returns true if it left a revoked communicator; at the deadline that becomes
  /// impossible.
  bool is_revoked_by(Deadline deadline);
  /// Begins to destroy it after operations in streams. REQUIRES: no thread makes further calls.
  void begin_destroying();
  /// Waits for end() or begin_destroying(), and aborts the latter at the deadline.
  void await_end(Deadline deadline);

 private:
  friend class Use;
  Connection(const Place& place, Communicator* communicator);

  /// Waits until no other thread is in a call, and puts the calling thread there. Fails with kAborted if the state does
  /// not allow the call.
  Status enter(Purpose purpose, std::string_view function, const WaitCheck& check);
  void leave();
  static bool allows(Purpose purpose, State state);
  /// A call in a thread of its own.
  struct Apart {
    std::string function;
    std::function<int()> call;
    std::vector<std::shared_ptr<Connection>> entered;  ///< by the caller; they are left when it is over
    // Guarded by mutex_:
    bool is_over = false;
    bool is_abandoned = false;  ///< nobody waits for it
    int code = kSuccess;
    Status status = {};
  };
  std::shared_ptr<Apart> begin_apart(std::string_view function, std::vector<std::shared_ptr<Connection>> entered,
                                     std::function<int()> call);
  Status finish_apart(const std::shared_ptr<Apart>& apart, const WaitCheck& check);
  /// Waits until a communicator that is not blocking has no call in progress. REQUIRES: it was entered.
  Status await_idle(std::string_view function, const WaitCheck& check);
  /// For a thread that cannot be started: as before end() or begin_destroying(), which may be called again. REQUIRES:
  /// mutex_ has been held since.
  void stay(State before, const Status& why);
  void finish_ending(State before);
  void destroy();
  /// Returns true if the library has stopped its operations and the communicator still exists.
  bool revoke();
  /// Frees it once no thread is in a call. REQUIRES: the calling thread is in no group.
  /// REQUIRES, for both of these: `lock` holds mutex_, which is released during the call.
  void abort(std::unique_lock<std::mutex>& lock);
  void set_ended(std::unique_lock<std::mutex>& lock);
  Communicator* handle();
  const Functions& nccl() const { return place_.library.call; }

  const Place place_;
  const bool is_borrowed_;
  Communicator* handle_;  ///< NCCL writes it, also from threads of its own
  std::mutex mutex_;      ///< held only briefly; guards what follows
  std::condition_variable changed_;
  State state_;
  bool is_in_call_ = false;
  bool leaves_rest_ = false;  ///< kEnding: a revoked communicator is wanted
  bool is_destroying_ = false;
  bool is_aborted_ = false;   ///< ncclCommAbort() was called
  bool is_captured_ = false;  ///< set_captured()
  bool is_revoked_ = false;   ///< ncclCommRevoke() was accepted; used by finish_ending() alone
  std::shared_ptr<Apart> connecting_;
  std::vector<std::shared_ptr<void>> kept_;  ///< NCCL may write to these until the communicator has ended
};

/// The calling thread's call of a collective or message, from its first function of NCCL to the last.
class Use {
 public:
  /// Waits while another thread is in a call.
  Use(Connection& connection, std::string_view function, const WaitCheck& check)
      : connection_(connection), status_(connection.enter(Connection::Purpose::kCalling, function, check)) {}
  ~Use() {
    if (status_.ok()) connection_.leave();
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

  /// If it is not ok, no call may be made.
  const Status& status() const { return status_; }
  const Library& library() const { return connection_.place_.library; }
  Communicator* communicator() const { return connection_.handle(); }
  /// Returns the error of the `code` of `function`; ok for kSuccess and kInProgress.
  Status result(std::string_view function, int code) {
    is_in_progress_ |= code == kInProgress;
    return code == kSuccess || code == kInProgress ? Status() : library().failure(function, code);
  }
  /// Returns once NCCL has accepted the calls. Fails with kAborted if the connection was ended meanwhile.
  Status settle(std::string_view function, const WaitCheck& check);

 private:
  Connection& connection_;
  const Status status_;
  bool is_in_progress_ = false;
};

}  // namespace accord::comm::nccl
