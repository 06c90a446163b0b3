// Each method is a call of the CUDA runtime inside a DeviceScope. The runtime is linked statically and loads the
// driver at its first call. The driver is asked for the location of memory, because the runtime's
// cudaPointerGetAttributes would initialize the thread's device.
#include "device/cuda/runtime.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <array>
#include <atomic>

#include "base/text.hpp"
#include "device/cuda/device_scope.hpp"
#include "device/cuda/driver.hpp"
#include "device/cuda/error.hpp"
#include "device/cuda/known_kernels.hpp"
#include "device/cuda/mapped_memory.hpp"
#include "device/cuda/multicast.hpp"
#include "device/cuda/shared_memory.hpp"

namespace accord::device::cuda {
namespace {

cudaStream_t handle_of(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }
cudaEvent_t handle_of(Event event) { return static_cast<cudaEvent_t>(event.handle); }

/// The oldest driver on which programs of this CUDA version run, according to NVIDIA's table. It is the same for all
/// versions with the same major number.
constexpr int kOldestDriver = CUDART_VERSION >= 13000 ? 580 : 525;

Result<int> attribute_of(Device device, cudaDeviceAttr attribute) {
  const DeviceScope scope(device);
  ACCORD_RETURN_IF_ERROR(scope.status());
  int value = 0;
  ACCORD_RETURN_IF_ERROR(status_of("cudaDeviceGetAttribute", cudaDeviceGetAttribute(&value, attribute, device.index)));
  return value;
}

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

/// Has the methods of Runtime.
class CudaRuntime final : public Runtime {
 public:
  Status viable() override {
    if (count_.load(std::memory_order_acquire) > 0) return {};
    ACCORD_RETURN_IF_ERROR(driver().status());
    int count = 0, version = 0;
    const cudaError_t result = cudaGetDeviceCount(&count);
    if (result == cudaErrorInsufficientDriver && cudaDriverGetVersion(&version) == cudaSuccess) {
      (void)cudaGetLastError();
      return Status(
          StatusCode::kUnsupported,
          fmt::format(
              "the NVIDIA driver supports CUDA up to {}, but this build uses CUDA {}, which needs driver {} or newer",
              version_text(version), version_text(CUDART_VERSION), kOldestDriver));
    }
    if (const Status found = status_of("cudaGetDeviceCount", result); !found.ok()) {
      return Status(StatusCode::kUnsupported, found.message());
    }
    if (count == 0) return Status(StatusCode::kUnsupported, "no NVIDIA GPU was found");
    count_.store(count, std::memory_order_release);
    return {};
  }

  int count() override { return viable().ok() ? count_.load(std::memory_order_acquire) : 0; }

  Result<std::string> describe(Device device) override {
    if (device.type != DeviceType::kCuda)
      return Status(StatusCode::kInternal, fmt::format("{} is not a CUDA device", to_string(device)));
    cudaDeviceProp is = {};
    ACCORD_RETURN_IF_ERROR(status_of("cudaGetDeviceProperties", cudaGetDeviceProperties(&is, device.index)));
    return fmt::format("{}, {:.0f} GiB, {} multiprocessors, compute capability {}.{}", is.name,
                       static_cast<double>(is.totalGlobalMem) / (1 << 30), is.multiProcessorCount, is.major, is.minor);
  }

  Result<std::string> identity(Device device) override {
    cudaDeviceProp is = {};
    ACCORD_RETURN_IF_ERROR(status_of("cudaGetDeviceProperties", cudaGetDeviceProperties(&is, device.index)));
    std::string words;
    for (const char byte : is.uuid.bytes) words += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    return words;
  }

  Result<std::optional<Device>> device_of(const void* memory) override {
    if (memory == nullptr) return std::optional<Device>();
    ACCORD_ASSIGN_OR_RETURN(const Driver* const ask, driver());
    std::array<CUpointer_attribute, 2> what = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    unsigned type = 0;
    int index = 0;
    std::array<void*, 2> answers = {&type, &index};
    ACCORD_RETURN_IF_ERROR(ask->status_of(
        "cuPointerGetAttributes",
        ask->pointer_get_attributes(what.size(), what.data(), answers.data(), reinterpret_cast<CUdeviceptr>(memory))));
    // For memory that the driver does not know, the type is 0; managed memory has the type of its device.
    if (type == 0 || type == CU_MEMORYTYPE_HOST) return std::optional<Device>();
    return std::optional(Device{DeviceType::kCuda, static_cast<std::int16_t>(index)});
  }

  Result<MappedMemory> mapped_memory(Device device, const void* memory, std::size_t bytes) override {
    return cuda::mapped_memory(device, memory, bytes);
  }

  Result<int> multiprocessors(Device device) override { return attribute_of(device, cudaDevAttrMultiProcessorCount); }
  Result<std::size_t> max_shared_bytes(Device device) override {
    ACCORD_ASSIGN_OR_RETURN(const int bytes, attribute_of(device, cudaDevAttrMaxSharedMemoryPerBlockOptin));
    return static_cast<std::size_t>(bytes);
  }

  Result<void*> allocate(Device device, std::size_t bytes) override {
    const DeviceScope scope(device);
    ACCORD_RETURN_IF_ERROR(scope.status());
    void* memory = nullptr;
    if (const cudaError_t result = cudaMalloc(&memory, bytes); result != cudaSuccess) {
      return status_of(fmt::format("cudaMalloc of {} on {}", bytes_text(bytes), to_string(device)), result);
    }
    return memory;
  }

  Status release(Device device, void* memory) override {
    const DeviceScope scope(device);
    ACCORD_RETURN_IF_ERROR(scope.status());
    return status_of("cudaFree", cudaFree(memory));
  }

  Result<void*> allocate_host(Device device, std::size_t bytes) override {
    const DeviceScope scope(device);
    ACCORD_RETURN_IF_ERROR(scope.status());
    void* memory = nullptr;
    if (const cudaError_t result = cudaHostAlloc(&memory, bytes, cudaHostAllocPortable); result != cudaSuccess) {
      return status_of(fmt::format("cudaHostAlloc of {}", bytes_text(bytes)), result);
    }
    return memory;
  }

  Status release_host(Device device, void* memory) override {
    const DeviceScope scope(device);
    ACCORD_RETURN_IF_ERROR(scope.status());
    return status_of("cudaFreeHost", cudaFreeHost(memory));
  }

  Status reach(Device from, Device to, void* memory, std::size_t bytes) override {
    return cuda::reach(from, to, memory, bytes);
  }
  Result<MemoryHandle> share(Device device, void* memory, std::size_t bytes, UniqueFd& descriptor) override {
    return cuda::share(device, memory, bytes, descriptor);
  }
  Result<void*> open_shared(Device device, const MemoryHandle& handle, int descriptor) override {
    return cuda::open_shared(device, handle, descriptor);
  }
  Status close_shared(Device device, void* memory) override { return cuda::close_shared(device, memory); }

  Result<std::size_t> multicast_bytes(Device device, int devices, std::size_t bytes) override {
    return cuda::multicast_bytes(device, devices, bytes);
  }
  Result<Multicast> create_multicast(Device device, int devices, std::size_t bytes, UniqueFd& descriptor) override {
    return cuda::create_multicast(device, devices, bytes, descriptor);
  }
  Result<Multicast> join_multicast(Device device, int descriptor, std::size_t bytes) override {
    return cuda::join_multicast(device, descriptor, bytes);
  }
  Status bind_multicast(Device device, Multicast& joined) override { return cuda::bind_multicast(device, joined); }
  Status leave_multicast(Device device, const Multicast& joined) override {
    return cuda::leave_multicast(device, joined);
  }

  Status push_current(Device device) override { return push_context(device); }
  void pop_current() override { pop_context(); }

  Status copy(void* to, const void* from, std::size_t bytes, Device device, Stream stream) override {
    const DeviceScope scope(device);
    ACCORD_RETURN_IF_ERROR(scope.status());
    return status_of("cudaMemcpyAsync", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, handle_of(stream)));
  }

  Status fill(void* memory, unsigned char value, std::size_t bytes, Device device, Stream stream) override {
    const DeviceScope scope(device);
    ACCORD_RETURN_IF_ERROR(scope.status());
    return status_of("cudaMemsetAsync", cudaMemsetAsync(memory, value, bytes, handle_of(stream)));
  }

  Status launch(const Kernel& kernel, const void* arguments, const Grid& grid, Device device, Stream stream) override {
    const DeviceScope scope(device);
    ACCORD_RETURN_IF_ERROR(scope.status());
    ACCORD_RETURN_IF_ERROR(load_kernels(device.index));
    if (kernel.cuda == nullptr)
      return Status(StatusCode::kInternal,
                    fmt::format("kernel {} comes from a part of the program that was built without CUDA", kernel.name));
    cudaLaunchAttribute starts_early = {};
    starts_early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    starts_early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(grid.blocks));
    config.blockDim = dim3(static_cast<unsigned>(grid.threads));
    config.dynamicSmemBytes = grid.shared_bytes;
    config.stream = handle_of(stream);
    config.attrs = &starts_early;
    config.numAttrs = kernel.starts_early && kernels_can_overlap(device.index) ? 1 : 0;
    std::array<void*, 1> pointers = {const_cast<void*>(arguments)};
    return status_of(fmt::format("launch of {}", kernel.name),
                     cudaLaunchKernelExC(&config, kernel.cuda, pointers.data()));
  }

  Status record(Event event, Device device, Stream stream) override {
    const DeviceScope scope(device);
    ACCORD_RETURN_IF_ERROR(scope.status());
    return status_of("cudaEventRecord", cudaEventRecord(handle_of(event), handle_of(stream)));
  }

  Status wait(Event event, Device device, Stream stream) override {
    const DeviceScope scope(device);
    ACCORD_RETURN_IF_ERROR(scope.status());
    return status_of("cudaStreamWaitEvent",
                     cudaStreamWaitEvent(handle_of(stream), handle_of(event), cudaEventWaitDefault));
  }

  Status synchronize(Device device, Stream stream) override {
    const DeviceScope scope(device);
    ACCORD_RETURN_IF_ERROR(scope.status());
    return status_of("cudaStreamSynchronize", cudaStreamSynchronize(handle_of(stream)));
  }

  Result<bool> is_capturing(Device device, Stream stream) override {
    const DeviceScope scope(device);
    ACCORD_RETURN_IF_ERROR(scope.status());
    cudaStreamCaptureStatus captures = cudaStreamCaptureStatusNone;
    const cudaError_t result = cudaStreamIsCapturing(handle_of(stream), &captures);
    if (result == cudaErrorStreamCaptureImplicit) {
      return status_of(
          fmt::format("{}'s default stream cannot be used while another stream is being captured", to_string(device)),
          result);
    }
    ACCORD_RETURN_IF_ERROR(status_of("cudaStreamIsCapturing", result));
    return captures != cudaStreamCaptureStatusNone;
  }

  Result<std::uint64_t> stream_id(Device device, Stream stream) override {
    const DeviceScope scope(device);
    ACCORD_RETURN_IF_ERROR(scope.status());
    unsigned long long id = 0;
    ACCORD_RETURN_IF_ERROR(status_of("cudaStreamGetId", cudaStreamGetId(handle_of(stream), &id)));
    // CUDA counts the streams of a device.
    constexpr int kDeviceBits = 8;
    return ((static_cast<std::uint64_t>(id) + 1) << kDeviceBits) | static_cast<std::uint64_t>(device.index);
  }

  Result<Graph> capture(Device device, Stream stream, const std::function<Status()>& body) override {
    const DeviceScope scope(device);
    ACCORD_RETURN_IF_ERROR(scope.status());
    // Thread-local mode: other threads may meanwhile make calls that are forbidden during a capture.
    ACCORD_RETURN_IF_ERROR(status_of("cudaStreamBeginCapture",
                                     cudaStreamBeginCapture(handle_of(stream), cudaStreamCaptureModeThreadLocal)));
    const Status body_status = body();
    cudaGraph_t captured = nullptr;
    const Status ended = status_of("cudaStreamEndCapture", cudaStreamEndCapture(handle_of(stream), &captured));
    Status status = body_status.ok() ? ended : body_status;
    cudaGraphExec_t graph = nullptr;
    if (status.ok()) status = status_of("cudaGraphInstantiate", cudaGraphInstantiate(&graph, captured, 0));
    if (captured != nullptr) (void)cudaGraphDestroy(captured);
    if (status.ok()) status = status_of("cudaGraphUpload", cudaGraphUpload(graph, handle_of(stream)));
    if (status.ok()) status = status_of("cudaStreamSynchronize", cudaStreamSynchronize(handle_of(stream)));
    if (!status.ok() && graph != nullptr) (void)cudaGraphExecDestroy(graph);
    if (!status.ok()) return status;
    return Graph{graph};
  }

  Status launch_graph(Graph graph, Device device, Stream stream) override {
    const DeviceScope scope(device);
    ACCORD_RETURN_IF_ERROR(scope.status());
    return status_of("cudaGraphLaunch", cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph.handle), handle_of(stream)));
  }

  Status destroy_graph(Graph graph) override {
    const DeviceScope scope;
    ACCORD_RETURN_IF_ERROR(scope.status());
    return status_of("cudaGraphExecDestroy", cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph.handle)));
  }

  Result<Stream> create_stream(Device device, bool high_priority) override {
    const DeviceScope scope(device);
    ACCORD_RETURN_IF_ERROR(scope.status());
    int lowest = 0, highest = 0;
    ACCORD_RETURN_IF_ERROR(
        status_of("cudaDeviceGetStreamPriorityRange", cudaDeviceGetStreamPriorityRange(&lowest, &highest)));
    cudaStream_t stream = nullptr;
    ACCORD_RETURN_IF_ERROR(
        status_of("cudaStreamCreateWithPriority",
                  cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, high_priority ? highest : lowest)));
    return Stream{stream};
  }

  Status destroy_stream(Device device, Stream stream) override {
    const DeviceScope scope(device);
    ACCORD_RETURN_IF_ERROR(scope.status());
    return status_of("cudaStreamDestroy", cudaStreamDestroy(handle_of(stream)));
  }

  Result<Event> create_event(Device device) override {
    const DeviceScope scope(device);
    ACCORD_RETURN_IF_ERROR(scope.status());
    cudaEvent_t event = nullptr;
    ACCORD_RETURN_IF_ERROR(
        status_of("cudaEventCreateWithFlags", cudaEventCreateWithFlags(&event, cudaEventDisableTiming)));
    return Event{event};
  }

  Status destroy_event(Event event) override {
    const DeviceScope scope;
    ACCORD_RETURN_IF_ERROR(scope.status());
    return status_of("cudaEventDestroy", cudaEventDestroy(handle_of(event)));
  }

  Result<bool> has_happened(Event event) override {
    const DeviceScope scope;
    ACCORD_RETURN_IF_ERROR(scope.status());
    const cudaError_t result = cudaEventQuery(handle_of(event));
    if (result == cudaErrorNotReady) {
      (void)cudaGetLastError();
      return false;
    }
    ACCORD_RETURN_IF_ERROR(status_of("cudaEventQuery", result));
    return true;
  }

 private:
  std::atomic<int> count_ = 0;
};

}  // namespace

Runtime& runtime() {
  static auto* const runtime = new CudaRuntime;  // never freed, for threads that outlive static objects
  return *runtime;
}

}  // namespace accord::device::cuda
