// Stores for C callers.
#include "accord/store.hpp"

#include <chrono>
#include <string>

#include "accord/accord.h"
#include "c/answer.hpp"
#include "c/bytes_out.hpp"
#include "c/handles.hpp"
#include "c/numbers.hpp"
#include "c/structs.hpp"
#include "c/times.hpp"

using accord::Duration;
using accord::Result;
using accord::Status;
using accord::c::answer;

namespace {

constexpr Duration kConnectTimeout = std::chrono::minutes(5);

Status return_store(Result<std::shared_ptr<accord::Store>> made, accord_store_t** store) {
  if (!made.ok()) return made.status();
  std::string description = (*made)->describe();
  *store = new accord_store{*std::move(made), std::move(description)};
  return {};
}

Result<std::shared_ptr<accord::Store>> make_tcp(const accord_tcp_store_options_t* given, std::string_view function) {
  ACCORD_ASSIGN_OR_RETURN(const accord_tcp_store_options_t options, accord::c::read_struct(given, function));
  ACCORD_ASSIGN_OR_RETURN(const accord::StoreRole role,
                          accord::c::value_of(accord::c::kStoreRoles, options.role, function, "role"));
  ACCORD_ASSIGN_OR_RETURN(const auto timeout, accord::c::timeout_of(options.timeout_ns, function));
  return accord::make_tcp_store(role, options.host != nullptr ? options.host : "127.0.0.1", options.port,
                                timeout.value_or(kConnectTimeout));
}

}  // namespace

extern "C" accord_status_t accord_memory_store_create(accord_store_t** store) {
  if (store != nullptr) *store = nullptr;
  return answer(__func__, {{"store", store}},
                [&](std::string_view) -> Status { return return_store(accord::make_memory_store(), store); });
}

extern "C" accord_status_t accord_file_store_create(const char* path, accord_store_t** store) {
  if (store != nullptr) *store = nullptr;
  return answer(__func__, {{"path", path}, {"store", store}},
                [&](std::string_view) -> Status { return return_store(accord::make_file_store(path), store); });
}

extern "C" accord_status_t accord_tcp_store_create(const accord_tcp_store_options_t* options, accord_store_t** store) {
  if (store != nullptr) *store = nullptr;
  return answer(__func__, {{"options", options}, {"store", store}},
                [&](std::string_view function) -> Status { return return_store(make_tcp(options, function), store); });
}

extern "C" accord_status_t accord_prefix_store_create(accord_store_t* parent, const char* prefix,
                                                      accord_store_t** store) {
  if (store != nullptr) *store = nullptr;
  return answer(__func__, {{"parent", parent}, {"prefix", prefix}, {"store", store}}, [&](std::string_view) -> Status {
    return return_store(accord::make_prefix_store(parent->store, prefix), store);
  });
}

extern "C" accord_status_t accord_store_set(accord_store_t* store, const char* key, const void* value, size_t size) {
  const void* bytes = size == 0 ? "" : value;
  return answer(__func__, {{"store", store}, {"key", key}, {"value", bytes}}, [&](std::string_view) {
    return store->store->set(key, {static_cast<const char*>(bytes), size});
  });
}

extern "C" accord_status_t accord_store_get(accord_store_t* store, const char* key, int64_t timeout_ns, void* buffer,
                                            size_t size, size_t* needed) {
  return answer(__func__, {{"store", store}, {"key", key}}, [&](std::string_view function) -> Status {
    ACCORD_ASSIGN_OR_RETURN(const Duration timeout, accord::c::wait_of(timeout_ns, function));
    ACCORD_ASSIGN_OR_RETURN(const std::string value, store->store->get(key, timeout));
    return accord::c::write_out(value, buffer, size, needed, function);
  });
}

extern "C" accord_status_t accord_store_add(accord_store_t* store, const char* key, int64_t delta, int64_t* sum) {
  return answer(__func__, {{"store", store}, {"key", key}}, [&](std::string_view) -> Status {
    ACCORD_ASSIGN_OR_RETURN(const std::int64_t result, store->store->add(key, delta));
    if (sum != nullptr) *sum = result;
    return {};
  });
}

extern "C" accord_status_t accord_store_erase(accord_store_t* store, const char* key) {
  return answer(__func__, {{"store", store}, {"key", key}}, [&](std::string_view) { return store->store->erase(key); });
}

extern "C" accord_status_t accord_store_describe(accord_store_t* store, const char** description) {
  return answer(__func__, {{"store", store}, {"description", description}}, [&](std::string_view) {
    *description = store->description.c_str();
    return Status();
  });
}

extern "C" void accord_store_free(accord_store_t* store) { delete store; }
