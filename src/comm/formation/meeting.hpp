#pragma once
// Where the ranks of a group that is being formed exchange texts over TCP.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "accord/status.hpp"
#include "base/clock.hpp"
#include "comm/formation/connection.hpp"
#include "comm/formation/handle.hpp"
#include "comm/formation/protocol.hpp"
#include "comm/membership/exchange.hpp"
#include "transport/tcp/call.hpp"

namespace accord::comm {

/// One rank's request to form a group.
struct FormationRequest {
  std::string uuid;                       ///< which formation; equal on all ranks
  std::vector<Handle> handles;            ///< of all ranks, in rank order, equal on all ranks
  Rank rank = 0;                          ///< this rank's place among them
  Deadline deadline = Deadline::never();  ///< for everything
  /// Asked now and then: why this rank cannot go on, or ok.
  std::function<Status()> check;
  std::string where;  ///< for messages: the call and the group
};

/// Rank 0 calls every other rank and is called by every other rank. A rank that has died, or whose handle has been
/// used, refuses or resets the call, so it is noticed at once, also before it has been in the meeting.
class FormationMeeting {
 public:
  /// `listener`: that of this rank's handle.
  FormationMeeting(FormationRequest request, HandleListener listener);
  /// Lets the others know of a failure. Waits up to a second until they have read it, on rank 0 also for those that
  /// have not called yet.
  ~FormationMeeting();
  FormationMeeting(const FormationMeeting&) = delete;
  FormationMeeting& operator=(const FormationMeeting&) = delete;

  /// An Exchange. Fails on all ranks if it fails on one. kPeerLost and kTimeout name the ranks that died or did not
  /// come, kMismatch those that have other handles.
  Status exchange(const std::string& mine, const OnText& on_text);
  /// Ends when the first rank can wait no longer, as far as this rank knows: the first exchange tells.
  Deadline deadline() const { return request_.deadline; }
  /// The group is formed: no other exchange follows.
  void finish();

 private:
  /// A caller that has not said hello yet.
  struct Stranger {
    transport::tcp::IncomingCall call;
    Deadline deadline = Deadline::never();
  };
  int size() const { return static_cast<int>(request_.handles.size()); }
  std::string named(Rank rank) const;
  std::string hello_to(Rank rank) const;
  /// Everything that can be done without waiting.
  void advance();
  void accept_callers();
  void hear_strangers();
  /// This rank's own reason to give up; the others learn that it has.
  void give_up(const Status& why);
  /// No rank that may still call is missing: only rank 0 is called.
  bool has_heard_all() const;
  /// Decides about a caller by its hello.
  void receive(transport::tcp::IncomingCall call);
  /// Tells a caller why it cannot take part.
  void reject(transport::tcp::IncomingCall call, const Status& why);
  void advance_calls();
  void read_messages();
  /// `ends_meeting`: whether the end of the connection means that the rank is lost.
  void read_from(Rank rank, Connection& connection, bool ends_meeting);
  void lose(Rank rank, std::string_view how);
  void send_messages();
  std::shared_ptr<const std::string> bytes_of(FormationMessage message) const;
  void check_deadline();
  void wait() const;
  /// Calls `use` with every connection.
  template <typename Use>
  void for_each_connection(Use use);

  FormationRequest request_;
  HandleListener listener_;
  const std::string digest_;  ///< of uuid and handles
  const std::size_t message_limit_;
  FormationProtocol protocol_;
  std::vector<Stranger> strangers_;                     ///< in the order of their arrival
  std::map<Rank, transport::tcp::OutgoingCall> calls_;  ///< not answered yet
  std::map<Rank, Connection> called_;                   ///< answered
  std::map<Rank, Connection> callers_;                  ///< ranks that called this one
  std::vector<Connection> rejected_;                    ///< other callers, while they read why
  std::vector<FormationMessage> early_;                 ///< to rank 0, which has not answered yet
};

}  // namespace accord::comm
