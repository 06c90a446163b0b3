// A mailbox is a ring of bytes in the receiver's window, one for each peer. An entry is a header of fixed size, the
// text and padding to a line. `posted`, next to the ring, counts the bytes ever written and is stored after them.
// `collected`, in the sender's window, counts the bytes read, so that the sender knows how much room there is. Both
// only grow. A rank reads its mailboxes whenever it creates a group itself, whichever group the entries are about, and
// keeps the last announcement of each rank on each topic.
#include "comm/membership/announcements.hpp"

#include <algorithm>
#include <cstring>

#include "comm/membership/exchange.hpp"
#include "exec/domain.hpp"

namespace accord::comm {
namespace {

using exec::Domain;
using exec::kLine;
using exec::WindowLayout;

// Offsets within a mailbox.
constexpr std::size_t kPosted = 0;
constexpr std::size_t kCollected = kLine;
constexpr std::size_t kRing = 2 * kLine;
constexpr std::size_t kRingBytes = WindowLayout::kMailboxBytes - kRing;

/// Precedes the text.
struct Header {
  std::uint64_t topic = 0;
  std::uint64_t attempt = 0;
  std::uint64_t list = 0;
  Announcement::Kind kind = Announcement::Kind::kJoining;
  std::uint32_t code = 0;
  std::uint32_t length = 0;
  std::uint32_t rank_count = 0;
  std::array<std::int32_t, 6> ranks = {};
};
static_assert(sizeof(Header) == kLine);
constexpr std::size_t kMaxEntry = exec::kPage;
static_assert(kMaxEntry <= kRingBytes && kMaxText + 1024 <= kMaxEntry);
/// Bytes kept free for each attempt that may still be given up. Without them the withdrawal might not fit, and the
/// peer would answer an attempt that is over.
constexpr std::size_t kWithdrawalBytes = 2 * kLine;

/// Returns whether ranks that arrive later must see it too.
bool is_final(const Announcement& last) {
  return last.kind == Announcement::Kind::kRefused ||
         (last.kind == Announcement::Kind::kGaveUp && last.reason.code() == StatusCode::kMismatch);
}

std::uint64_t padded(std::size_t text) { return (sizeof(Header) + text + kLine - 1) / kLine * kLine; }

}  // namespace

Announcements::Announcements(const Membership& members)
    : members_(members), mailboxes_(static_cast<std::size_t>(members.topology.size())) {}

bool Announcements::begin(std::uint64_t topic, std::uint64_t list) {
  const std::lock_guard lock(mutex_);
  return being_created_.insert({topic, list}).second;
}

void Announcements::end(std::uint64_t topic, std::uint64_t list) {
  const std::lock_guard lock(mutex_);
  being_created_.erase({topic, list});
}

std::uint64_t Announcements::next_attempt() {
  const std::lock_guard lock(mutex_);
  return ++attempts_;
}

std::uint64_t Announcements::now(std::span<const Rank> ranks) {
  const std::lock_guard lock(mutex_);
  for (const Rank r : ranks)
    if (r != members_.rank) collect(r);
  return arrivals_;
}

bool Announcements::post(Rank to, const Announcement& announcement) {
  const Status& reason = announcement.reason;
  std::string_view text = reason.ok() ? announcement.text : reason.message();
  const std::lock_guard lock(mutex_);
  Mailbox& box = mailboxes_[static_cast<std::size_t>(to)];
  const std::uint64_t collected = Domain::word(mine(to, kCollected)).load(std::memory_order_acquire);
  if (announcement.kind == Announcement::Kind::kGaveUp) --box.open;
  const bool is_joining = announcement.kind == Announcement::Kind::kJoining;
  const std::uint64_t reserved = (box.open + (is_joining ? 1 : 0)) * kWithdrawalBytes;
  const std::uint64_t room = kRingBytes - std::min(kRingBytes, box.posted - collected + reserved);
  std::uint64_t max_bytes = kMaxEntry;
  if (announcement.kind == Announcement::Kind::kGaveUp) max_bytes = std::min<std::uint64_t>(max_bytes, room);
  text = text.substr(0, max_bytes - sizeof(Header));
  const std::uint64_t bytes = padded(text.size());
  if (bytes > room) return false;
  if (is_joining) ++box.open;
  Header header{.topic = announcement.topic,
                .attempt = announcement.attempt,
                .list = announcement.list,
                .kind = announcement.kind,
                .code = static_cast<std::uint32_t>(reason.code()),
                .length = static_cast<std::uint32_t>(text.size())};
  header.rank_count = static_cast<std::uint32_t>(std::min(reason.ranks().size(), header.ranks.size()));
  std::copy_n(reason.ranks().begin(), header.rank_count, header.ranks.begin());
  std::vector<std::byte> entry(bytes);
  std::memcpy(entry.data(), &header, sizeof header);
  std::memcpy(entry.data() + sizeof header, text.data(), header.length);
  transport::Link& link = *members_.links[to];
  const std::size_t box_there = members_.layout.mailbox(members_.rank);
  const std::size_t at = box.posted % kRingBytes;
  const std::size_t first = std::min<std::size_t>(bytes, kRingBytes - at);
  // Errors are ignored: a peer that cannot be reached shows in its state.
  (void)link.put(std::span(entry).first(first), box_there + kRing + at);
  (void)link.put(std::span(entry).subspan(first), box_there + kRing);
  box.posted += bytes;
  (void)link.signal(box_there + kPosted, box.posted);
  return true;
}

void Announcements::settle(Rank to) {
  const std::lock_guard lock(mutex_);
  --mailboxes_[static_cast<std::size_t>(to)].open;
}

std::optional<Announcement> Announcements::last_from(Rank from, std::uint64_t topic, std::uint64_t since) {
  const std::lock_guard lock(mutex_);
  collect(from);
  const auto found = received_.find({from, topic});
  if (found == received_.end()) return std::nullopt;
  const Received& received = found->second;
  const bool is_over =
      received.last.kind == Announcement::Kind::kGaveUp && received.when <= since && !is_final(received.last);
  return is_over ? std::nullopt : std::optional(received.last);
}

void Announcements::settle_received(Rank from, std::uint64_t topic, std::uint64_t attempt) {
  const std::lock_guard lock(mutex_);
  const auto found = received_.find({from, topic});
  if (found != received_.end() && found->second.last.attempt == attempt) received_.erase(found);
}

void Announcements::collect(Rank from) {
  Mailbox& box = mailboxes_[static_cast<std::size_t>(from)];
  const std::uint64_t posted = Domain::word(mine(from, kPosted)).load(std::memory_order_acquire);
  if (posted == box.collected) return;
  while (box.collected < posted) {
    Header header;
    copy_out(from, box.collected, std::as_writable_bytes(std::span(&header, 1)));
    const std::size_t length = std::min<std::size_t>(header.length, kMaxEntry - sizeof header);
    std::string text(length, '\0');
    copy_out(from, box.collected + sizeof header, std::as_writable_bytes(std::span(text)));
    box.collected += padded(length);
    Announcement announcement{
        .kind = header.kind, .topic = header.topic, .attempt = header.attempt, .list = header.list};
    if (header.kind != Announcement::Kind::kJoining) {
      const std::size_t count = std::min<std::size_t>(header.rank_count, header.ranks.size());
      announcement.reason = Status(static_cast<StatusCode>(header.code), std::move(text),
                                   std::vector<Rank>(header.ranks.begin(), header.ranks.begin() + count));
    } else {
      announcement.text = std::move(text);
    }
    store(from, std::move(announcement));
  }
  (void)members_.links[from]->signal(members_.layout.mailbox(members_.rank) + kCollected, box.collected);
}

void Announcements::store(Rank from, Announcement announcement) {
  ++arrivals_;
  const std::pair key(from, announcement.topic);
  const auto found = received_.find(key);
  const bool known = found != received_.end();
  // An attempt that is already settled here cannot be given up.
  if (announcement.kind == Announcement::Kind::kGaveUp &&
      !(known && found->second.last.attempt == announcement.attempt))
    return;
  if (announcement.kind == Announcement::Kind::kRefused && known && is_final(found->second.last)) return;
  received_[key] = {std::move(announcement), arrivals_};
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
