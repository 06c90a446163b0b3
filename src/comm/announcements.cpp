// A mailbox is a ring of bytes in the receiver's window, one for each peer. An entry is a header of fixed size, the
// text and padding to a line. `posted`, next to the ring, counts the bytes ever written and is stored after them.
// `taken`, in the sender's window, counts the bytes read, so that the sender knows how much room there is. Both only
// grow. A rank reads its mailboxes whenever it creates a group itself, whichever group the entries are about, and
// keeps the last announcement of each rank on each topic.
#include "comm/announcements.hpp"

#include <algorithm>
#include <cstring>

#include "comm/exchange.hpp"
#include "exec/domain.hpp"

namespace accord::comm {
namespace {

using exec::Domain;
using exec::kLine;
using exec::WindowLayout;

// Offsets within a mailbox.
constexpr std::size_t kPosted = 0;
constexpr std::size_t kTaken = kLine;
constexpr std::size_t kRing = 2 * kLine;
constexpr std::size_t kRingBytes = WindowLayout::kMailboxBytes - kRing;

/// Precedes the text.
struct Header {
  std::uint64_t topic = 0;
  std::uint64_t attempt = 0;
  std::uint64_t list = 0;
  Announcement::Kind kind = Announcement::Kind::kCame;
  std::uint32_t code = 0;
  std::uint32_t length = 0;
  std::uint32_t rank_count = 0;
  std::array<std::int32_t, 6> ranks = {};
};
static_assert(sizeof(Header) == kLine);
constexpr std::size_t kMostLetter = exec::kPage;
static_assert(kMostLetter <= kRingBytes && kMostText + 1024 <= kMostLetter);
/// Bytes kept free for each attempt that may still be given up. Without them the withdrawal might not fit, and the
/// peer would answer an attempt that is over.
constexpr std::size_t kLastWord = 2 * kLine;

/// Returns whether ranks that arrive later must see it too.
bool is_kept(const Announcement& last) {
  return last.kind == Announcement::Kind::kRefused ||
         (last.kind == Announcement::Kind::kGaveUp && last.reason.code() == StatusCode::kMismatch);
}

std::uint64_t padded(std::size_t text) { return (sizeof(Header) + text + kLine - 1) / kLine * kLine; }

}  // namespace

Announcements::Announcements(const Membership& members)
    : members_(members), mailboxes_(static_cast<std::size_t>(members.topology.size())) {}

bool Announcements::begin(std::uint64_t topic, std::uint64_t list) {
  const std::lock_guard lock(mutex_);
  return in_the_making_.insert({topic, list}).second;
}

void Announcements::end(std::uint64_t topic, std::uint64_t list) {
  const std::lock_guard lock(mutex_);
  in_the_making_.erase({topic, list});
}

std::uint64_t Announcements::next_attempt() {
  const std::lock_guard lock(mutex_);
  return ++attempts_;
}

std::uint64_t Announcements::now(std::span<const Rank> ranks) {
  const std::lock_guard lock(mutex_);
  for (const Rank r : ranks)
    if (r != members_.rank) collect(r);
  return came_;
}

bool Announcements::post(Rank to, const Announcement& announcement) {
  const Status& reason = announcement.reason;
  std::string_view text = reason.ok() ? announcement.text : reason.message();
  const std::lock_guard lock(mutex_);
  Mailbox& box = mailboxes_[static_cast<std::size_t>(to)];
  const std::uint64_t taken = Domain::word(mine(to, kTaken)).load(std::memory_order_acquire);
  if (announcement.kind == Announcement::Kind::kGaveUp) --box.open;
  const bool comes = announcement.kind == Announcement::Kind::kCame;
  const std::uint64_t kept = (box.open + (comes ? 1 : 0)) * kLastWord;
  const std::uint64_t room = kRingBytes - std::min(kRingBytes, box.posted - taken + kept);
  std::uint64_t most = kMostLetter;
  if (announcement.kind == Announcement::Kind::kGaveUp) most = std::min<std::uint64_t>(most, room);
  text = text.substr(0, most - sizeof(Header));
  const std::uint64_t bytes = padded(text.size());
  if (bytes > room) return false;
  if (comes) ++box.open;
  Header header{.topic = announcement.topic,
                .attempt = announcement.attempt,
                .list = announcement.list,
                .kind = announcement.kind,
                .code = static_cast<std::uint32_t>(reason.code()),
                .length = static_cast<std::uint32_t>(text.size())};
  header.rank_count = static_cast<std::uint32_t>(std::min(reason.ranks().size(), header.ranks.size()));
  std::copy_n(reason.ranks().begin(), header.rank_count, header.ranks.begin());
  std::vector<std::byte> letter(bytes);
  std::memcpy(letter.data(), &header, sizeof header);
  std::memcpy(letter.data() + sizeof header, text.data(), header.length);
  transport::Link& link = *members_.links[to];
  const std::size_t box_there = members_.layout.mailbox(members_.rank);
  const std::size_t at = box.posted % kRingBytes;
  const std::size_t first = std::min<std::size_t>(bytes, kRingBytes - at);
  // Errors are ignored: a peer that cannot be reached shows in its state.
  (void)link.put(std::span(letter).first(first), box_there + kRing + at);
  (void)link.put(std::span(letter).subspan(first), box_there + kRing);
  box.posted += bytes;
  (void)link.signal(box_there + kPosted, box.posted);
  return true;
}

void Announcements::settle(Rank to) {
  const std::lock_guard lock(mutex_);
  --mailboxes_[static_cast<std::size_t>(to)].open;
}

std::optional<Announcement> Announcements::heard(Rank from, std::uint64_t topic, std::uint64_t since) {
  const std::lock_guard lock(mutex_);
  collect(from);
  const auto found = heard_.find({from, topic});
  if (found == heard_.end()) return std::nullopt;
  const Heard& heard = found->second;
  const bool is_over = heard.last.kind == Announcement::Kind::kGaveUp && heard.when <= since && !is_kept(heard.last);
  return is_over ? std::nullopt : std::optional(heard.last);
}

void Announcements::forget(Rank from, std::uint64_t topic, std::uint64_t attempt) {
  const std::lock_guard lock(mutex_);
  const auto found = heard_.find({from, topic});
  if (found != heard_.end() && found->second.last.attempt == attempt) heard_.erase(found);
}

void Announcements::collect(Rank from) {
  Mailbox& box = mailboxes_[static_cast<std::size_t>(from)];
  const std::uint64_t posted = Domain::word(mine(from, kPosted)).load(std::memory_order_acquire);
  if (posted == box.taken) return;
  while (box.taken < posted) {
    Header header;
    copy_out(from, box.taken, std::as_writable_bytes(std::span(&header, 1)));
    const std::size_t length = std::min<std::size_t>(header.length, kMostLetter - sizeof header);
    std::string text(length, '\0');
    copy_out(from, box.taken + sizeof header, std::as_writable_bytes(std::span(text)));
    box.taken += padded(length);
    Announcement announcement{
        .kind = header.kind, .topic = header.topic, .attempt = header.attempt, .list = header.list};
    if (header.kind != Announcement::Kind::kCame) {
      const std::size_t count = std::min<std::size_t>(header.rank_count, header.ranks.size());
      announcement.reason = Status(static_cast<StatusCode>(header.code), std::move(text),
                                   std::vector<Rank>(header.ranks.begin(), header.ranks.begin() + count));
    } else {
      announcement.text = std::move(text);
    }
    take(from, std::move(announcement));
  }
  (void)members_.links[from]->signal(members_.layout.mailbox(members_.rank) + kTaken, box.taken);
}

void Announcements::take(Rank from, Announcement announcement) {
  ++came_;
  const std::pair key(from, announcement.topic);
  const auto found = heard_.find(key);
  const bool known = found != heard_.end();
  // An attempt that is already settled here cannot be given up.
  if (announcement.kind == Announcement::Kind::kGaveUp &&
      !(known && found->second.last.attempt == announcement.attempt))
    return;
  if (announcement.kind == Announcement::Kind::kRefused && known && is_kept(found->second.last)) return;
  heard_[key] = {std::move(announcement), came_};
}

void Announcements::copy_out(Rank from, std::uint64_t position, std::span<std::byte> bytes) const {
  const std::size_t at = position % kRingBytes;
  const std::size_t first = std::min(bytes.size(), kRingBytes - at);
  std::memcpy(bytes.data(), mine(from, kRing + at), first);
  if (first < bytes.size()) std::memcpy(bytes.data() + first, mine(from, kRing), bytes.size() - first);
}

std::byte* Announcements::mine(Rank peer, std::size_t offset) const {
  return members_.endpoint->window().data() + members_.layout.mailbox(peer) + offset;
}

}  // namespace accord::comm
