// Communicators for C callers.
#include "accord/communicator.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <string>
#include <vector>

#include "accord/accord.h"
#include "c/answer.hpp"
#include "c/communicator_options.hpp"
#include "c/handles.hpp"
#include "c/numbers.hpp"
#include "c/structs.hpp"
#include "c/times.hpp"

using accord::Communicator;
using accord::CommunicatorOptions;
using accord::Result;
using accord::Status;
using accord::StatusCode;
using accord::c::answer;
using accord::c::options_of;

extern "C" accord_status_t accord_communicator_create(accord_store_t* store, int32_t rank, int32_t size,
                                                      const accord_communicator_options_t* options,
                                                      accord_communicator_t** communicator) {
  if (communicator != nullptr) *communicator = nullptr;
  return answer(__func__, {{"store", store}, {"communicator", communicator}}, [&](std::string_view function) -> Status {
    ACCORD_ASSIGN_OR_RETURN(CommunicatorOptions read, options_of(options, function));
    ACCORD_ASSIGN_OR_RETURN(Communicator made, Communicator::create(store->store, rank, size, std::move(read)));
    *communicator = new accord_communicator{std::move(made)};
    return {};
  });
}

extern "C" accord_status_t accord_communicator_from_environment(const accord_communicator_options_t* options,
                                                                accord_communicator_t** communicator) {
  if (communicator != nullptr) *communicator = nullptr;
  return answer(__func__, {{"communicator", communicator}}, [&](std::string_view function) -> Status {
    ACCORD_ASSIGN_OR_RETURN(const CommunicatorOptions read, options_of(options, function));
    ACCORD_ASSIGN_OR_RETURN(Communicator made, Communicator::from_environment(read));
    *communicator = new accord_communicator{std::move(made)};
    return {};
  });
}

extern "C" accord_status_t accord_communicator_split(accord_communicator_t* communicator, int32_t color, int32_t key,
                                                     const char* name, accord_communicator_t** part) {
  if (part != nullptr) *part = nullptr;
  return answer(__func__, {{"communicator", communicator}, {"part", part}}, [&](std::string_view) -> Status {
    Communicator& parent = communicator->communicator;
    std::string label = name != nullptr ? name : parent.name() + "/" + std::to_string(color);
    ACCORD_ASSIGN_OR_RETURN(std::optional<Communicator> made, parent.split(color, key, std::move(label)));
    if (made) *part = new accord_communicator{*std::move(made)};
    return {};
  });
}

extern "C" accord_status_t accord_communicator_split_ranks(accord_communicator_t* communicator, const int32_t* ranks,
                                                           size_t count, const accord_communicator_options_t* options,
                                                           accord_communicator_t** part) {
  if (part != nullptr) *part = nullptr;
  const void* needed_ranks = count == 0 ? &count : static_cast<const void*>(ranks);
  return answer(__func__, {{"communicator", communicator}, {"ranks", needed_ranks}, {"part", part}},
                [&](std::string_view function) -> Status {
                  Communicator& parent = communicator->communicator;
                  const std::span<const accord::Rank> list(ranks, count);
                  ACCORD_ASSIGN_OR_RETURN(CommunicatorOptions read, options_of(options, function));
                  if (options == nullptr || options->name == nullptr)
                    read.name = fmt::format("{}/{}", parent.name(), fmt::join(list, ","));
                  ACCORD_ASSIGN_OR_RETURN(std::optional<Communicator> made, parent.split_ranks(list, std::move(read)));
                  if (made) *part = new accord_communicator{*std::move(made)};
                  return {};
                });
}

extern "C" accord_status_t accord_communicator_grow(accord_communicator_t* communicator, accord_store_t* store,
                                                    int32_t added, const accord_communicator_options_t* options,
                                                    accord_communicator_t** grown) {
  if (grown != nullptr) *grown = nullptr;
  return answer(__func__, {{"communicator", communicator}, {"store", store}, {"grown", grown}},
                [&](std::string_view function) -> Status {
                  Communicator& old = communicator->communicator;
                  ACCORD_ASSIGN_OR_RETURN(CommunicatorOptions read, options_of(options, function));
                  if (options == nullptr || options->name == nullptr) read.name = old.name() + "/grown";
                  ACCORD_ASSIGN_OR_RETURN(Communicator made, old.grow(store->store, added, std::move(read)));
                  *grown = new accord_communicator{std::move(made)};
                  return {};
                });
}

extern "C" accord_status_t accord_communicator_join(accord_store_t* store, const accord_communicator_options_t* options,
                                                    accord_communicator_t** communicator) {
  if (communicator != nullptr) *communicator = nullptr;
  return answer(__func__, {{"store", store}, {"communicator", communicator}}, [&](std::string_view function) -> Status {
    ACCORD_ASSIGN_OR_RETURN(CommunicatorOptions read, options_of(options, function));
    ACCORD_ASSIGN_OR_RETURN(Communicator made, Communicator::join(store->store, std::move(read)));
    *communicator = new accord_communicator{std::move(made)};
    return {};
  });
}

extern "C" accord_status_t accord_communicator_shrink(accord_communicator_t* communicator, const char* name,
                                                      int64_t timeout_ns, accord_communicator_t** rest) {
  if (rest != nullptr) *rest = nullptr;
  return answer(__func__, {{"communicator", communicator}, {"rest", rest}}, [&](std::string_view function) -> Status {
    Communicator& failed = communicator->communicator;
    accord::CallOptions options;
    ACCORD_ASSIGN_OR_RETURN(options.timeout, accord::c::timeout_of(timeout_ns, function));
    ACCORD_ASSIGN_OR_RETURN(Communicator made,
                            failed.shrink(name != nullptr ? name : failed.name() + "/shrunk", options));
    *rest = new accord_communicator{std::move(made)};
    return {};
  });
}

extern "C" accord_status_t accord_communicator_alone(const accord_communicator_options_t* options,
                                                     accord_communicator_t** communicator) {
  if (communicator != nullptr) *communicator = nullptr;
  return answer(__func__, {{"communicator", communicator}}, [&](std::string_view function) -> Status {
    ACCORD_ASSIGN_OR_RETURN(CommunicatorOptions read, options_of(options, function));
    ACCORD_ASSIGN_OR_RETURN(Communicator made, Communicator::alone(std::move(read)));
    *communicator = new accord_communicator{std::move(made)};
    return {};
  });
}

extern "C" accord_status_t accord_communicator_handle(accord_communicator_t* communicator, char* text, size_t bytes) {
  return answer(__func__, {{"communicator", communicator}, {"text", text}}, [&](std::string_view function) -> Status {
    ACCORD_ASSIGN_OR_RETURN(const std::string handle, communicator->communicator.handle());
    if (handle.size() >= bytes)
      return Status(StatusCode::kResourceExhausted,
                    fmt::format("{}: the handle and its zero need {} bytes, but text has room for {}", function,
                                handle.size() + 1, bytes));
    text[handle.copy(text, handle.size())] = '\0';
    return {};
  });
}

extern "C" accord_status_t accord_communicator_reconfigure(accord_communicator_t* communicator, const char* uuid,
                                                           const char* const* handles, size_t count,
                                                           accord_rank_order_t order, int64_t timeout_ns,
                                                           accord_communicator_t** formed) {
  if (formed != nullptr) *formed = nullptr;
  return answer(
      __func__, {{"communicator", communicator}, {"uuid", uuid}, {"handles", handles}, {"formed", formed}},
      [&](std::string_view function) -> Status {
        accord::ReconfigureOptions options;
        ACCORD_ASSIGN_OR_RETURN(options.timeout, accord::c::timeout_of(timeout_ns, function));
        if (order != ACCORD_RANKS_AS_LISTED && order != ACCORD_RANKS_IN_ANY_ORDER)
          return Status(StatusCode::kInvalidArgument, fmt::format("{}: {} is no order of ranks", function, order));
        if (order == ACCORD_RANKS_IN_ANY_ORDER) options.order = accord::RankOrder::kAny;
        std::vector<std::string> texts;
        for (size_t i = 0; i < count; ++i) {
          if (handles[i] == nullptr)
            return Status(StatusCode::kInvalidArgument, fmt::format("{}: handle {} is null", function, i));
          texts.emplace_back(handles[i]);
        }
        ACCORD_ASSIGN_OR_RETURN(Communicator made, communicator->communicator.reconfigure(uuid, texts, options));
        *formed = new accord_communicator{std::move(made)};
        return {};
      });
}

extern "C" accord_status_t accord_communicator_rank(accord_communicator_t* communicator, int32_t* rank) {
  return answer(__func__, {{"communicator", communicator}, {"rank", rank}}, [&](std::string_view) {
    *rank = communicator->communicator.rank();
    return Status();
  });
}

extern "C" accord_status_t accord_communicator_size(accord_communicator_t* communicator, int32_t* size) {
  return answer(__func__, {{"communicator", communicator}, {"size", size}}, [&](std::string_view) {
    *size = communicator->communicator.size();
    return Status();
  });
}

extern "C" accord_status_t accord_communicator_name(accord_communicator_t* communicator, const char** name) {
  return answer(__func__, {{"communicator", communicator}, {"name", name}}, [&](std::string_view) {
    *name = communicator->communicator.name().c_str();
    return Status();
  });
}

extern "C" accord_status_t accord_communicator_state(accord_communicator_t* communicator, accord_state_t* state) {
  return answer(__func__, {{"communicator", communicator}, {"state", state}}, [&](std::string_view) {
    *state = accord::c::number_of(accord::c::kStates, communicator->communicator.state());
    return Status();
  });
}

extern "C" accord_status_t accord_communicator_status(accord_communicator_t* communicator) {
  return answer(__func__, {{"communicator", communicator}},
                [&](std::string_view) { return communicator->communicator.status(); });
}

extern "C" accord_status_t accord_communicator_abort(accord_communicator_t* communicator, const char* reason) {
  return answer(__func__, {{"communicator", communicator}}, [&](std::string_view) {
    communicator->communicator.abort(reason != nullptr ? reason : "no reason given");
    return Status();
  });
}

extern "C" accord_status_t accord_communicator_dump(accord_communicator_t* communicator, const char* directory) {
  return answer(__func__, {{"communicator", communicator}, {"directory", directory}},
                [&](std::string_view) { return communicator->communicator.dump(directory).status(); });
}

extern "C" accord_status_t accord_communicator_counters(accord_communicator_t* communicator,
                                                        accord_counters_t* counters) {
  return answer(__func__, {{"communicator", communicator}, {"counters", counters}}, [&](std::string_view function) {
    const accord::Counters now = communicator->communicator.counters();
    return accord::c::write_struct({0, now.failures, now.waits, now.queued}, counters, function);
  });
}

extern "C" accord_status_t accord_communicator_counters_of(accord_communicator_t* communicator, int32_t kind,
                                                           uint64_t* calls, uint64_t* bytes) {
  return answer(__func__, {{"communicator", communicator}}, [&](std::string_view function) -> Status {
    ACCORD_ASSIGN_OR_RETURN(const accord::c::CallKind known,
                            accord::c::value_of(accord::c::kCallKinds, kind, function, "kind"));
    const accord::Counters::Of of = communicator->communicator.counters().of(known.collective);
    if (calls != nullptr) *calls = of.calls;
    if (bytes != nullptr) *bytes = of.bytes;
    return {};
  });
}

extern "C" accord_status_t accord_communicator_close(accord_communicator_t* communicator) {
  return answer(__func__, {{"communicator", communicator}}, [&](std::string_view) {
    communicator->communicator.close();
    return Status();
  });
}

extern "C" void accord_communicator_free(accord_communicator_t* communicator) { delete communicator; }
