// Created before the meeting: a listener under a random name, and the cookie that callers must know.
#include "transport/shm/rendezvous.hpp"

#include "transport/shm/meeting.hpp"
#include "transport/shm/unix_socket.hpp"

namespace accord::transport {

Result<Rendezvous> Rendezvous::create(Rank rank, int size) {
  MeetingPlace place;
  place.rank = rank;
  ACCORD_ASSIGN_OR_RETURN(const std::string name, random_word());
  ACCORD_ASSIGN_OR_RETURN(const std::string cookie, random_word());
  place.socket_name = "accord-" + name;
  place.cookie = cookie_of(cookie);
  ACCORD_ASSIGN_OR_RETURN(UniqueFd listener, listen_at(place.socket_name));
  return Rendezvous(std::move(place), size, std::move(listener));
}

Result<std::vector<Met>> Rendezvous::meet(std::span<const MeetingPlace> peers, const Window& window,
                                          Deadline deadline) {
  return Meeting(place_, size_, listener_, guests_, peers, window).run(deadline);
}

void Rendezvous::close() {
  guests_.clear();
  listener_.reset();
}

}  // namespace accord::transport
