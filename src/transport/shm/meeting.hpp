#pragma once
// One call of Rendezvous::meet(): what is known of each peer until all are met.

#include <string>
#include <vector>

#include "transport/shm/rendezvous.hpp"

namespace accord::transport {

/// meeting.cpp describes the protocol. Used once.
class Meeting {
 public:
  Meeting(const MeetingPlace& self, int size, const UniqueFd& listener, std::vector<Guest>& guests,
          std::span<const MeetingPlace> peers, const Window& window);
  ~Meeting();

  Result<std::vector<Met>> run(Deadline deadline);

 private:
  enum class Stage : std::uint8_t { kCall, kReply, kAwait, kAnswer, kMet };

  struct Peer {
    MeetingPlace place;
    Stage stage;
    Met met = {};
    bool ready = false;  // its socket may be readable
    UniqueFd line = {};  // to the listener of a peer that is awaited
    bool line_closed = false;
    bool process_ended = false;
  };

  Status advance();
  Result<UniqueFd> dial(Peer& peer);
  Status call(Peer& peer);
  Status receive_reply(Peer& peer);
  Status hold_connection(Peer& peer);
  Status answer(Peer& peer);
  Status accept_guests();
  Status receive(Guest& guest);
  void admit(Guest& guest);
  void drop(Guest& guest, std::string_view why);
  void wait(Deadline deadline);

  bool awaits_any() const;
  std::vector<Rank> missing() const;
  std::vector<Rank> ended() const;
  Hello hello_to(const Peer& peer) const;
  bool is_from(const Hello& hello, const MeetingPlace& place) const;
  Status failure(StatusCode code, std::string_view what, std::vector<Rank> ranks) const;

  const MeetingPlace& self_;
  const int size_;
  const UniqueFd& listener_;
  std::vector<Guest>& guests_;
  const Window window_;
  std::vector<Peer> peers_;
  bool may_have_connection_ = true;  // the listener may have a connection
  int strangers_ = 0;
  std::string last_stranger_;
};

}  // namespace accord::transport
