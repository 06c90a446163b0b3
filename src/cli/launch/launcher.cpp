// A turn of the loop: wait for signals, output and links; let everything that is ready act; check the ranks; report
// their news to node 0; deliver the decisions of node 0. On node 0 itself, messages to and from node 0 take the same
// path, only without a link. The loop ends when node 0 has sent Finish (or is gone), no rank is left, and all output
// is written.
#include "cli/launch/launcher.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "accord/info.hpp"
#include "cli/launch/meeting.hpp"
#include "cli/launch/rank_guard.hpp"
#include "store/tcp_socket.hpp"

namespace accord::cli {
namespace {

constexpr int kOwnNode = 0;  // of a launcher that has a Coordinator

constexpr std::array kPassedOn = {SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT};  // passed on; they end nothing

// If a standard descriptor were closed, one of our pipes would get its number.
void open_standard_descriptors() {
  int fd = 0;
  do {
    fd = open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) close(fd);
}

bool is_ignored(int number) {
  struct sigaction action = {};
  return sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

// From now on these signals arrive as data of the descriptor, and a closed output as an error of write(). Signals
// that the launcher was started to ignore (nohup: SIGHUP) are left alone, because a blocked signal would arrive after
// all. The only action that changes here is that of SIGCHLD, without which exits would go unseen; so the ranks
// inherit what was ignored.
UniqueFd block_signals() {
  signal(SIGCHLD, SIG_DFL);
  sigset_t handled;
  sigemptyset(&handled);
  for (const int number : kEndingSignals)
    if (!is_ignored(number)) sigaddset(&handled, number);
  for (const int number : kPassedOn)
    if (!is_ignored(number)) sigaddset(&handled, number);
  sigaddset(&handled, SIGCHLD);
  sigset_t blocked = handled;
  sigaddset(&blocked, SIGPIPE);
  sigprocmask(SIG_BLOCK, &blocked, nullptr);
  return UniqueFd(signalfd(-1, &handled, SFD_NONBLOCK | SFD_CLOEXEC));
}

}  // namespace

int launch(const Job& job) {
  open_standard_descriptors();
  return Launcher(job).run();
}

Launcher::Launcher(const Job& job)
    : job_(job),
      ranks_(job_, console_),
      signals_(block_signals()),
      meeting_deadline_(Deadline::in(job.meeting_timeout)) {}

int Launcher::run() {
  if (const Status met = meet_others(); !met.ok()) {
    print_message(met.message());
    exit_code_ = interrupted_by_ != 0 ? 128 + interrupted_by_ : 1;
  }
  while (!done()) turn();
  return *exit_code_;
}

Hello Launcher::hello() const {
  return {std::string(version()), job_.run_id, job_.nodes, job_.node.value_or(-1), job_.ranks_here, elastic_text(job_)};
}

Status Launcher::meet_others() {
  if (job_.nodes > 1) {
    const auto should_stop = [this] {
      on_signal();
      return interrupted_by_ != 0;
    };
    ACCORD_ASSIGN_OR_RETURN(Met met, meet(job_, meeting_deadline_, should_stop));
    if (Link* link = std::get_if<Link>(&met)) {
      head_ = std::move(*link);
      head_->send(hello());
      return Status();
    }
    listening_ = std::move(std::get<Served>(met).listening);
  }
  coordinator_.emplace(job_, [this](Start& start) { return host_stores(start); });
  Hello own = hello();
  own.node = kOwnNode;
  ACCORD_RETURN_IF_ERROR(coordinator_->admit(own).status());
  deliver();
  return Status();
}

Status Launcher::host_stores(Start& start) {
  stores_.reset();  // frees their ports, which may be needed again
  ACCORD_ASSIGN_OR_RETURN(stores_, JobStores::host(job_, start));
  return Status();
}

bool Launcher::done() const {
  if (!exit_code_.has_value() || !ranks_.idle() || !console_.empty()) return false;
  // The other launchers disconnect first, so that closing does not cut off what was sent to them.
  return peers_.empty() || disconnect_deadline_.passed();
}

Deadline Launcher::next_check() const {
  Deadline next = ranks_.next_check();
  if (coordinator_.has_value() && coordinator_->gathering() && meeting_deadline_.at() < next.at())
    next = meeting_deadline_;
  return !peers_.empty() && disconnect_deadline_.at() < next.at() ? disconnect_deadline_ : next;
}

void Launcher::turn() {
  Watches watches = {{signals_.get(), POLLIN, [this] { on_signal(); }}};
  console_.add_watches(watches);
  ranks_.add_watches(watches);
  if (stores_.has_value()) stores_->add_watches(watches);
  if (listening_.valid()) watches.push_back({listening_.get(), POLLIN, [this] { on_connection(); }});
  const auto watch_link = [&](Link& link, std::function<void()> ready) {
    const int events = link.wants_to_send() ? POLLIN | POLLOUT : POLLIN;
    watches.push_back({link.fd(), static_cast<short>(events), std::move(ready)});
  };
  for (const std::unique_ptr<Peer>& peer : peers_) watch_link(peer->link, [this, &peer = *peer] { on_peer(peer); });
  if (head_.has_value() && head_->alive()) watch_link(*head_, [this] { on_head(); });

  std::vector<pollfd> polled;
  for (const Watch& watch : watches) polled.push_back({watch.fd, watch.events, 0});
  if (poll(polled.data(), polled.size(), next_check().poll_milliseconds()) > 0) {
    for (std::size_t i = 0; i < watches.size(); ++i) {
      if (polled[i].revents != 0) watches[i].ready();
    }
  }
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (peer->link.alive() || peer->node < 0) continue;
    coordinator_->lose(peer->node, "its connection ended; it was killed, or its machine is gone");
    if (job_.elastic && coordinator_->running())
      print_message(fmt::format("the launcher of node {} is gone; another one may take its place", peer->node));
  }
  std::erase_if(peers_, [](const std::unique_ptr<Peer>& peer) { return !peer->link.alive(); });
  if (head_.has_value() && !head_->alive() && !exit_code_.has_value()) on_head_gone();
  if (coordinator_.has_value() && coordinator_->gathering() && meeting_deadline_.passed()) on_meeting_timeout();
  ranks_.advance();
  report_ranks();
  deliver();
}

void Launcher::on_signal() {
  signalfd_siginfo info = {};
  while (read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    const int number = static_cast<int>(info.ssi_signo);
    if (std::ranges::find(kEndingSignals, number) != kEndingSignals.end()) {
      on_interrupt(number);
    } else if (number != SIGCHLD) {
      ranks_.pass_on(number);
    }
  }
}

void Launcher::on_interrupt(int signal) {
  if (interrupted_by_ != 0) {
    print_message(fmt::format("{} again: killing the ranks", signal_name(signal)));
    console_.drop_if_full();
    return ranks_.kill();
  }
  interrupted_by_ = signal;
  print_message(fmt::format("{}: passed on to the ranks; a second one kills them", signal_name(signal)));
  ranks_.end(signal);
  send_to_head(Interrupted{signal});
}

void Launcher::on_connection() {
  UniqueFd fd(accept4(listening_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!fd.valid()) return;
  store::keep_alive(fd.get());
  peers_.push_back(std::make_unique<Peer>(Peer{Link(std::move(fd))}));
}

void Launcher::on_peer(Peer& peer) {
  peer.link.flush();
  for (const Message& message : peer.link.receive()) {
    const auto* hello = std::get_if<Hello>(&message);
    if (peer.node >= 0) {
      coordinator_->receive(peer.node, message);
    } else if (hello != nullptr) {
      const Result<int> node = coordinator_->admit(*hello);
      if (node.ok()) {
        peer.node = *node;
        print_message(fmt::format("node {} has arrived ({} of {})", *node, coordinator_->arrived(), job_.nodes));
      } else {
        peer.link.send(Refuse{node.status().message()});
        print_message("refused a launcher: " + node.status().message());
      }
    }
  }
}

void Launcher::on_head() {
  head_->flush();
  for (const Message& message : head_->receive()) on_message(message);
}

void Launcher::on_head_gone() {
  print_message("the launcher of node 0 is gone; it was killed, or its machine is gone. Ending the ranks of this node");
  ranks_.end(SIGTERM);
  exit_code_ = interrupted_by_ != 0 ? 128 + interrupted_by_ : 1;
}

void Launcher::on_meeting_timeout() {
  const std::string what = fmt::format("{} did not arrive at {} within {} s", coordinator_->missing(),
                                       store::tcp_url(job_.endpoint_host, job_.endpoint_port),
                                       std::chrono::duration_cast<std::chrono::seconds>(job_.meeting_timeout).count());
  print_message(what);
  for (const std::unique_ptr<Peer>& peer : peers_) peer->link.send(Refuse{what});
  coordinator_->receive(kOwnNode, Interrupted{});
  exit_code_ = 1;
}

void Launcher::on_message(const Message& message) {
  if (const auto* start = std::get_if<Start>(&message)) return on_start(*start);
  if (const auto* stop = std::get_if<Stop>(&message)) return on_stop(*stop);
  if (const auto* refuse = std::get_if<Refuse>(&message)) {
    print_message("refused by the launcher of node 0: " + refuse->reason);
    exit_code_ = 1;
  } else if (const auto* finish = std::get_if<Finish>(&message)) {
    if (!exit_code_.has_value()) exit_code_ = finish->exit_code;
    disconnect_deadline_ = Deadline::in(std::chrono::seconds(1));
  }
}

void Launcher::on_start(const Start& start) {
  generation_ = start.generation;
  failure_reported_ = end_reported_ = false;
  if (interrupted_by_ == 0) ranks_.start(start);
}

void Launcher::on_stop(const Stop& stop) {
  const bool is_first_notice = generation_ != stop.generation || interrupted_by_ == 0;
  if (generation_ != stop.generation) failure_reported_ = end_reported_ = false;
  generation_ = stop.generation;
  if (stop.signal != 0) {
    if (is_first_notice)
      print_message(fmt::format("another launcher received {}; ending the ranks", signal_name(stop.signal)));
    return ranks_.end(stop.signal);
  }
  const std::string then =
      stop.restart ? fmt::format("; ending the others for restart {} of {}", stop.generation + 1, job_.max_restarts)
                   : "; ending the others";
  print_message(to_string(stop.failure) + then);
  ranks_.end(SIGTERM);
}

void Launcher::report_ranks() {
  if (!generation_.has_value()) return;
  if (ranks_.failure().has_value() && !failure_reported_) {
    failure_reported_ = true;
    send_to_head(Failed{*generation_, *ranks_.failure()});
  }
  if (ranks_.idle() && !end_reported_) {
    end_reported_ = true;
    send_to_head(Ended{*generation_});
  }
}

void Launcher::send_to_head(const Message& message) {
  if (head_.has_value()) head_->send(message);
  if (coordinator_.has_value()) coordinator_->receive(kOwnNode, message);
}

void Launcher::deliver() {
  if (!coordinator_.has_value()) return;
  for (const auto& [node, message] : coordinator_->pop_outgoing()) {
    if (node == kOwnNode) {
      on_message(message);
      continue;
    }
    for (const std::unique_ptr<Peer>& peer : peers_) {
      if (peer->node == node) peer->link.send(message);
    }
  }
}

void Launcher::print_message(const std::string& text) { console_.write_line(Stream::kError, "accord run: ", text); }

}  // namespace accord::cli
