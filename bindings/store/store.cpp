// Each store is a Python class of its own over one C++ handle. All of them are subclasses of accord.Store.
#include "bindings/store/store.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <string>

#include "base/clock.hpp"
#include "base/config.hpp"
#include "bindings/arguments/duration.hpp"
#include "bindings/arguments/path.hpp"
#include "bindings/interpreter/gil.hpp"
#include "bindings/interpreter/interrupt.hpp"
#include "bindings/interpreter/process.hpp"
#include "bindings/interpreter/status.hpp"
#include "comm/internal.hpp"

namespace accord::python {
namespace {

constexpr Duration kDefaultTimeout = std::chrono::minutes(5);

struct AnyStore {
  explicit AnyStore(std::shared_ptr<Store> made) : store(std::move(made)) {}
  ProcessBound<std::shared_ptr<Store>> store;

  std::shared_ptr<Store>& use() { return store.use("this store"); }
};
struct MemoryStore : AnyStore {
  using AnyStore::AnyStore;
};
struct FileStore : AnyStore {
  using AnyStore::AnyStore;
};
struct TcpStore : AnyStore {
  using AnyStore::AnyStore;
};
struct PrefixStore : AnyStore {
  using AnyStore::AnyStore;
};

std::string value_argument(nb::handle value) {
  if (nb::isinstance<nb::str>(value)) return nb::cast<std::string>(value);
  if (PyObject_CheckBuffer(value.ptr()) == 0)
    throw nb::type_error(
        (std::string("value: expected bytes or str, got ") + nb::type_name(value.type()).c_str()).c_str());
  const nb::bytes bytes(value);
  return {bytes.c_str(), bytes.size()};
}

nb::bytes get(AnyStore& self, std::string key, nb::handle timeout) {
  const Duration limit = duration_argument(timeout).value_or(kDefaultTimeout);
  const std::string value = value_or_raise(
      run_interruptibly([store = self.use(), key = std::move(key), limit] { return store->get(key, limit); }));
  return nb::bytes(value.data(), value.size());
}

void set(AnyStore& self, std::string key, nb::handle value) {
  const std::shared_ptr<Store> store = self.use();
  const std::string bytes = value_argument(value);
  Status status;
  {
    const WithoutGil without_gil;
    status = store->set(key, bytes);
  }
  raise_if_error(status);
}

std::int64_t add(AnyStore& self, std::string key, std::int64_t amount) {
  const std::shared_ptr<Store> store = self.use();
  Result<std::int64_t> sum(std::int64_t{0});
  {
    const WithoutGil without_gil;
    sum = store->add(key, amount);
  }
  return value_or_raise(std::move(sum));
}

void erase(AnyStore& self, std::string key) {
  const std::shared_ptr<Store> store = self.use();
  Status status;
  {
    const WithoutGil without_gil;
    status = store->erase(key);
  }
  raise_if_error(status);
}

void make_tcp(TcpStore* self, std::string host, int port, bool is_host, nb::handle timeout) {
  const Duration limit = duration_argument(timeout).value_or(kDefaultTimeout);
  const StoreRole role = is_host ? StoreRole::kHost : StoreRole::kClient;
  new (self) TcpStore(value_or_raise(run_interruptibly(
      [role, host = std::move(host), port, limit] { return make_tcp_store(role, host, port, limit); })));
}

/// Returns the store in which from_environment() would meet, for a rank and size that may come from elsewhere.
AnyStore job_store(Rank rank, int size, nb::handle timeout) {
  const Duration limit = duration_argument(timeout).value_or(kDefaultTimeout);
  std::map<std::string, std::string> environment = process_environment();
  Result<comm::JobPlace> place = comm::job_place(environment);
  if (!place.ok() || place->rank != rank || place->size != size) {
    environment["RANK"] = std::to_string(rank);
    environment["WORLD_SIZE"] = std::to_string(size);
    place = comm::job_place(environment);
  }
  return AnyStore(value_or_raise(run_interruptibly(
      [job = value_or_raise(std::move(place)), limit] { return comm::job_store(job, Deadline::in(limit)); })));
}

int tcp_port(TcpStore& self) {
  const std::string where = self.use()->describe();
  return std::stoi(where.substr(where.rfind(':') + 1));
}

}  // namespace

void bind_stores(nb::module_& module) {
  nb::class_<AnyStore>(module, "Store",
                       R"(A key-value store in which ranks that do not know each other yet meet.

Values are at most 8 MiB of bytes, keys at most 4 KiB of text. Any thread may call any method. Wherever accord takes a
Store, it also accepts an object with the same methods set, get and add, such as a store of torch.distributed or your
own.)")
      .def("set", &set, nb::arg("key"), nb::arg("value"),
           nb::sig("def set(self, key: str, value: bytes | bytearray | str) -> None"),
           "Sets `key`, overwriting any earlier value, and wakes every rank that waits for the key.")
      .def("get", &get, nb::arg("key"), nb::arg("timeout") = nb::none(),
           nb::sig("def get(self, key: str, timeout: float | datetime.timedelta | None = None) -> bytes"),
           R"(Waits at most `timeout` seconds (5 minutes by default) until `key` is set, and returns its value.

Raises Timeout, which names the key.)")
      .def("add", &add, nb::arg("key"), nb::arg("amount"),
           "Atomically adds `amount` to the decimal number at `key` (an absent key counts as 0) and returns the sum.")
      .def("erase", &erase, nb::arg("key"), "Removes `key` if it exists.")
      .def(
          "describe", [](AnyStore& self) { return self.use()->describe(); },
          "The store's address: \"tcp://10.0.0.1:29500\".")
      .def("__repr__", [](AnyStore& self) { return "<accord.Store " + self.use()->describe() + ">"; });

  nb::class_<MemoryStore, AnyStore>(module, "MemoryStore", "A store for ranks that are threads of one process.")
      .def("__init__", [](MemoryStore* self) { new (self) MemoryStore(make_memory_store()); });

  nb::class_<FileStore, AnyStore>(module, "FileStore",
                                  R"(A store in the directory `path` of a file system that all ranks share.

The directory is created if absent. Nothing is removed when the store is destroyed; use a new directory for each
job.)")
      .def(
          "__init__",
          [](FileStore* self, nb::handle path) {
            new (self) FileStore(value_or_raise(make_file_store(path_argument(path))));
          },
          nb::arg("path"), nb::sig("def __init__(self, path: str | os.PathLike[str]) -> None"));

  nb::class_<TcpStore, AnyStore>(module, "TcpStore",
                                 R"(A store over TCP at `host`:`port`.

With is_host=True, it serves the store from a thread until it is destroyed, and also acts as a client; port 0 selects
a free port (see `port`). A client retries the connection for `timeout` seconds (5 minutes by default), then raises
Timeout. Raises NotFound at once if `host` has no address.)")
      .def("__init__", &make_tcp, nb::arg("host"), nb::arg("port"), nb::arg("is_host") = false,
           nb::arg("timeout") = nb::none(),
           nb::sig("def __init__(self, host: str, port: int, is_host: bool = False, "
                   "timeout: float | datetime.timedelta | None = None) -> None"))
      .def_prop_ro("port", &tcp_port, "The port of the store.");

  nb::class_<PrefixStore, AnyStore>(module, "PrefixStore",
                                    "A view of `store` in which key \"k\" is key \"prefix/k\" of `store`.")
      .def(
          "__init__",
          [](PrefixStore* self, nb::handle store, std::string prefix) {
            new (self) PrefixStore(make_prefix_store(store_argument(store), std::move(prefix)));
          },
          nb::arg("store"), nb::arg("prefix"),
          nb::sig("def __init__(self, store: Store | accord._arrays.StoreLike, prefix: str) -> None"));

  module.def("job_store", &job_store, nb::arg("rank"), nb::arg("size"), nb::arg("timeout") = nb::none(),
             nb::sig("def job_store(rank: int, size: int, timeout: float | None = None) -> Store"),
             "Returns the store of the job, in which Communicator.from_environment() meets; kept as long as the "
             "process lives.");
}

std::shared_ptr<Store> store_argument(nb::handle object) {
  if (nb::isinstance<AnyStore>(object)) return nb::cast<AnyStore&>(object).use();
  for (const char* method : {"set", "get", "add"})
    if (!nb::hasattr(object, method))
      throw nb::type_error((std::string("store: expected an accord.Store or an object with set, get and add; ") +
                            nb::type_name(object.type()).c_str() + " has no " + method)
                               .c_str());
  return make_python_store(nb::borrow(object));
}

}  // namespace accord::python
