// A simulated accelerator for PyTorch, with graphs, in one file: a backend from outside PyTorch's own tree, for which
// the dispatch key PrivateUse1 is kept. Start yours from here, and put your driver's calls in.
//
// Device memory is host memory. A stream is a number. A kernel is a C++ closure: a launch runs it at once or, while
// the stream captures, keeps it in a graph. To replay the graph is to run its closures, for the price of one launch.
//
//   1. driver        launch a kernel: run it now, or keep it
//   2. allocator     device memory from a cache, with a private pool for each graph
//   3. graph         what torch.accelerator.Graph calls: capture, instantiate, replay, reset
//   4. guard         devices, streams and events as c10 wants them
//   5. hooks         the host side: random numbers, pinned memory, "is it there?"
//   6. operators     memory and copies by hand; all others through one fallback that borrows the CPU's kernels
//   7. registration  where PyTorch learns of all this
//
// Left out to stay short: a second device, work that outlives its launch, capture across several streams, autocast,
// fused LSTM and GRU cells.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/GraphImplInterface.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/library.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <set>

namespace simdev {
using at::IntArrayRef, at::Tensor, c10::Device, c10::DeviceIndex, c10::IValue, c10::MempoolId_t, c10::Stream;
constexpr auto kSim = c10::DeviceType::PrivateUse1;
const Device kDevice(kSim, 0);

// ------------------------------------------------------------------------------------------------------- 1. driver
struct Kernel {
  std::string name;
  std::function<size_t()> run;             // do the work; return how many bytes went in and out
  std::vector<const void*> reads, writes;  // memory, from which debug_dump tells who waits for whom
};

struct Graph;
Graph* recording = nullptr;  // the graph under capture, and on which stream
c10::StreamId recording_stream = 0;
thread_local c10::StreamId current_stream = 0;  // 0 is the default stream
bool is_capturing(c10::StreamId stream) { return recording && stream == recording_stream; }
bool is_capturing() { return is_capturing(current_stream); }
void keep(Kernel kernel);  // in the graph under capture; see part 3

// Time is simulated as well, in microseconds: the same on every machine. The host is busy with each call of the
// device; the device works through its kernels behind it, as fast as its memory allows.
double host_time = 0, device_time = 0;
double launch_us = 10, kernel_us = 1, bytes_per_us = 1e6;
int64_t launches = 0;
std::vector<std::tuple<std::string, double, double>> spans;  // (name, begin, end), while tracing
bool tracing = false;

void call_device() {
  ++launches;
  if (tracing) spans.emplace_back("launch", host_time, host_time + launch_us);
  host_time += launch_us;
}

void execute(const Kernel& kernel) {
  double begin = std::max(host_time, device_time);
  device_time = begin + kernel_us + static_cast<double>(kernel.run()) / bytes_per_us;
  if (tracing) spans.emplace_back(kernel.name, begin, device_time);
}

void launch(Kernel kernel) {
  if (is_capturing()) return keep(std::move(kernel));
  call_device();
  execute(kernel);
}

void wait_for_device() { host_time = std::max(host_time, device_time); }

// ---------------------------------------------------------------------------------------------------- 2. allocator
struct Pool {
  std::multimap<size_t, void*> free;  // size -> block
  int graphs = 0;                     // that use it
};
constexpr MempoolId_t kDefaultPool{0, 0};
constexpr size_t kWaste = 16;  // a cached block serves a request so many times smaller; real allocators split blocks
MempoolId_t pool_of_capture();  // part 3

struct Allocator final : c10::DeviceAllocator {
  struct Block { size_t size; MempoolId_t pool; };
  std::mutex mutex;  // autograd frees memory on threads of its own
  std::map<MempoolId_t, Pool> pools;
  std::map<const void*, Block> blocks;
  c10::CachingDeviceAllocator::DeviceStats stats;

  c10::DataPtr allocate(size_t bytes) override {
    std::lock_guard lock(mutex);
    MempoolId_t id = is_capturing() ? pool_of_capture() : kDefaultPool;
    size_t size = (std::max<size_t>(bytes, 1) + 511) / 512 * 512;
    auto& cache = pools[id].free;
    void* data = nullptr;
    if (auto found = cache.lower_bound(size); found != cache.end() && found->first <= kWaste * size) {
      data = found->second;
      size = found->first;
      cache.erase(found);
    } else {
      data = c10::alloc_cpu(size);  // here, your driver's malloc
      blocks[data] = {size, id};
      stats.reserved_bytes[0].increase(size);
      ++stats.num_device_alloc;
    }
    if (is_capturing()) std::memset(data, 0xff, size);  // no kernel has run: floats read NaN until the first replay
    stats.allocated_bytes[0].increase(size);
    return {data, data, &give_back, kDevice};
  }

  static void give_back(void* data);  // what a tensor's last owner calls

  void free_cached(Pool& pool) {
    for (auto& [size, data] : pool.free) {
      c10::free_cpu(data);
      blocks.erase(data);
      stats.reserved_bytes[0].decrease(size);
      ++stats.num_device_free;
    }
    pool.free.clear();
  }

  void emptyCache(MempoolId_t id) override {
    std::lock_guard lock(mutex);
    free_cached(pools[id]);
  }

  void enter(MempoolId_t id) {  // a graph starts to use a pool
    std::lock_guard lock(mutex);
    ++pools[id].graphs;
  }

  void leave(MempoolId_t id) {  // the last graph to leave frees what no tensor holds; give_back frees the rest
    std::lock_guard lock(mutex);
    if (--pools[id].graphs == 0) free_cached(pools[id]);
  }

  MempoolId_t pool_of(const void* data) {
    std::lock_guard lock(mutex);
    auto found = blocks.find(data);
    return found == blocks.end() ? kDefaultPool : found->second.pool;
  }

  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
  bool initialized() override { return true; }
  void recordStream(const c10::DataPtr&, Stream) override {}  // streams run in program order
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex) override { return stats; }
  void resetAccumulatedStats(DeviceIndex) override {
    stats.allocated_bytes[0].reset_accumulated();
    stats.reserved_bytes[0].reset_accumulated();
  }
  void resetPeakStats(DeviceIndex) override {
    stats.allocated_bytes[0].reset_peak();
    stats.reserved_bytes[0].reset_peak();
  }
};
Allocator allocator;

void Allocator::give_back(void* data) {
  std::lock_guard lock(allocator.mutex);
  auto& block = allocator.blocks.at(data);
  auto& pool = allocator.pools[block.pool];
  allocator.stats.allocated_bytes[0].decrease(block.size);
  pool.free.emplace(block.size, data);
  if (block.pool != kDefaultPool && pool.graphs == 0) allocator.free_cached(pool);
}

struct HostAllocator final : at::HostAllocator {  // Graph.__enter__ empties its cache, so there must be one
  c10::DataPtr allocate(size_t bytes) override { return c10::GetAllocator(at::kCPU)->allocate(bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return c10::GetAllocator(at::kCPU)->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
  bool record_event(void*, void*, Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};
HostAllocator host_allocator;

// -------------------------------------------------------------------------------------------------------- 3. graph
struct Graph final : at::GraphImplInterface {
  explicit Graph(const at::GraphImplArgs& args) : keep_graph(args.keep_graph) {}
  ~Graph() override { reset(); }

  void capture_begin(MempoolId_t pool, at::GraphCaptureMode) override {  // one mode here: refuse what cannot be kept
    TORCH_CHECK(!recording, "simdev: another graph is being captured");
    TORCH_CHECK(current_stream != 0, "simdev: capture on a stream of your own, `with stream, graph:`; "
                "this is the default stream");
    TORCH_CHECK(pool_id == kDefaultPool, "simdev: this graph holds a capture; reset() it first");
    static c10::CaptureId_t next = 1;
    pool_id = pool == kDefaultPool ? MempoolId_t{next++, 0} : pool;
    allocator.enter(pool_id);
    failure.clear();
    recording = this;
    recording_stream = current_stream;
  }

  void capture_end() override {
    TORCH_CHECK(recording == this, "simdev: capture_end() without capture_begin()");
    recording = nullptr;
    if (!failure.empty()) return reset();  // replay() will say why there is nothing to replay
    if (!keep_graph) instantiate();
  }

  void instantiate() override {  // where a real driver compiles and uploads
    TORCH_CHECK(captured(), "simdev: nothing to instantiate: ", why_empty());
    if (keep_graph || debug) executable = kernels;
    else if (executable.empty()) executable = std::exchange(kernels, {});
  }

  void replay() override {
    TORCH_CHECK(captured(), "simdev: nothing to replay: ", why_empty());
    if (executable.empty()) instantiate();
    call_device();  // once, however many kernels
    for (auto& kernel : executable) execute(kernel);
  }

  void reset() override {
    if (recording == this) recording = nullptr;
    kernels.clear();
    executable.clear();
    inputs.clear();
    if (pool_id != kDefaultPool) allocator.leave(std::exchange(pool_id, kDefaultPool));
  }

  MempoolId_t pool() const override {
    TORCH_CHECK(pool_id != kDefaultPool, "simdev: no pool: ", why_empty());
    return pool_id;
  }

  void enable_debug_mode() override { debug = true; }

  void debug_dump(const std::string& path) override {  // in Graphviz' language; an edge is memory written, then read
    TORCH_CHECK(!kernels.empty(), "simdev: nothing to dump: call enable_debug_mode() before the capture");
    std::ofstream file(path);
    file << "digraph capture {\n";
    std::map<const void*, size_t> writer;
    for (size_t i = 0; i < kernels.size(); ++i) {
      file << "  k" << i << " [label=\"" << kernels[i].name << "\"];\n";
      std::set<size_t> before;
      for (auto address : kernels[i].reads)
        if (auto found = writer.find(address); found != writer.end()) before.insert(found->second);
      for (auto from : before) file << "  k" << from << " -> k" << i << ";\n";
      for (auto address : kernels[i].writes) writer[address] = i;
    }
    file << "}\n";
    TORCH_CHECK(file.flush(), "simdev: cannot write ", path);
  }

  void keep_alive(const Tensor& t) {  // memory from outside of the pool; what lies in the pool, the pool keeps
    if (allocator.pool_of(t.storage().data()) != pool_id) inputs.push_back(t.storage());
  }
  bool captured() const { return pool_id != kDefaultPool && recording != this; }
  std::string why_empty() const {
    return failure.empty() ? "capture first (reset() empties a graph)" : "its capture failed, at " + failure;
  }

  const bool keep_graph;
  bool debug = false;
  MempoolId_t pool_id = kDefaultPool;
  std::vector<Kernel> kernels, executable;  // as captured; as instantiated
  std::vector<c10::Storage> inputs;         // memory from outside of the pool
  std::string failure;                      // the first thing under capture that could not be kept
};

void keep(Kernel kernel) { recording->kernels.push_back(std::move(kernel)); }
MempoolId_t pool_of_capture() { return recording->pool_id; }

void refuse_under_capture(bool capturing, const std::string& what, const std::string& why = "") {
  if (!capturing) return;
  if (recording->failure.empty()) recording->failure = what;
  TORCH_CHECK(false, "simdev: ", what, " cannot be captured", why.empty() ? "" : ": ", why);
}

// -------------------------------------------------------------------------------------------------------- 4. guard
struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr auto static_type = kSim;
  Guard() = default;
  explicit Guard(c10::DeviceType) {}
  static Stream stream(c10::StreamId id) { return Stream(Stream::UNSAFE, kDevice, id); }

  c10::DeviceType type() const override { return kSim; }
  DeviceIndex deviceCount() const noexcept override { return 1; }
  Device getDevice() const override { return kDevice; }
  Device exchangeDevice(Device) const override { return kDevice; }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  void synchronizeDevice(DeviceIndex) const override {
    refuse_under_capture(recording, "synchronize()");
    wait_for_device();
  }

  Stream getStream(Device) const override { return stream(current_stream); }
  Stream getDefaultStream(Device) const override { return stream(0); }
  Stream getNewStream(Device, int) const override {
    static std::atomic<c10::StreamId> last = 0;
    return stream(++last);
  }
  Stream exchangeStream(Stream next) const override { return stream(std::exchange(current_stream, next.id())); }
  bool isStreamCapturing(const Stream& s) const override { return is_capturing(s.id()); }
  bool queryStream(const Stream&) const override { return true; }  // a launch is done when it returns
  void synchronizeStream(const Stream& s) const override {
    refuse_under_capture(is_capturing(s.id()), "stream.synchronize()");
    wait_for_device();
  }

  // An event is a time, at which the device has done all that came before.
  void record(void** event, const Stream&, const DeviceIndex, const c10::EventFlag) const override {
    if (!*event) *event = new double;
    *static_cast<double*>(*event) = std::max(host_time, device_time);
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override { delete static_cast<double*>(event); }
  void block(void*, const Stream&) const override {}  // streams run in program order: they never wait
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override { wait_for_device(); }
  double elapsedTime(void* begin, void* end, const DeviceIndex) const override {
    return (*static_cast<double*>(end) - *static_cast<double*>(begin)) / 1000;
  }
};

// -------------------------------------------------------------------------------------------------------- 5. hooks
struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  bool isPinnedPtr(const void*) const override { return false; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &host_allocator; }
  const at::Generator& getDefaultGenerator(DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();  // its kernels are the CPU's, so its random numbers are, too
  }
};

// ---------------------------------------------------------------------------------------------------- 6. operators
bool is_sim(const Tensor& t) { return t.defined() && t.device().type() == kSim; }
const void* address(const Tensor& t) { return t.storage().data(); }

Tensor as_cpu(const Tensor& t) {  // the same bytes as a CPU tensor, which owns nothing
  return at::from_blob(t.storage().mutable_data(), t.sizes(), t.strides(), t.storage_offset(), [](void*) {},
                       t.options().device(at::kCPU), at::kCPU);
}

Tensor empty_like_on_sim(const Tensor& t) {
  return at::empty_strided(t.sizes(), t.strides(), t.options().device(kDevice));
}

template <class F>
IValue map_tensors(const IValue& value, const F& f) {  // f on each tensor in an argument of an operator
  auto g = [&](const Tensor& t) { return t.defined() ? f(t) : t; };
  if (value.isTensor()) return g(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& t : value.toTensorVector()) list.push_back(g(t));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (const std::optional<Tensor>& t : value.toOptionalTensorVector())
      list.push_back(t ? std::optional(g(*t)) : std::nullopt);
    return list;
  }
  return value;
}

size_t copy_values(const IValue& to, const IValue& from) {  // returns the bytes that were written
  size_t bytes = 0;
  auto copy = [&](const Tensor& t, const Tensor& f) {
    if (t.defined()) bytes += t.copy_(f).nbytes();
  };
  if (to.isTensor()) copy(to.toTensor(), from.toTensor());
  if (to.isTensorList())
    for (size_t i = 0; i < to.toTensorVector().size(); ++i) copy(to.toTensorVector()[i], from.toTensorVector()[i]);
  return bytes;
}

using Stack = std::vector<IValue>;
Stack call_on(c10::DeviceType type, const c10::OperatorHandle& op, Stack args) {
  at::AutoDispatchBelowAutograd no_autograd;  // it has been here already
  for (auto& arg : args)
    if (arg.isDevice() && arg.toDevice().type() == kSim) arg = Device(type);
  op.callBoxed(&args);
  return args;
}

// What would this call return? Meta kernels work out shapes and dtypes and touch no data.
Stack infer(const c10::OperatorHandle& op, const Stack& args) {
  Stack meta;
  for (auto& arg : args)
    meta.push_back(map_tensors(arg, [](const Tensor& t) {
      return at::empty_strided(t.sizes(), t.strides(), t.options().device(at::kMeta));
    }));
  std::string why = "the shape of its result may depend on data";
  try {
    return call_on(at::kMeta, op, std::move(meta));
  } catch (const c10::Error& error) {
    why += std::string("\n") + error.what_without_backtrace();
  } catch (const std::exception&) {  // a meta kernel written in Python
  }
  refuse_under_capture(true, op.schema().name(), why);
  return {};
}

const Tensor& resize(const Tensor& t, IntArrayRef size, std::optional<at::MemoryFormat>) {
  const auto& storage = t.storage();
  size_t bytes = (t.storage_offset() + c10::multiply_integers(size)) * t.itemsize(), old = storage.nbytes();
  if (bytes > old) {
    refuse_under_capture(is_capturing() && old > 0, "resize_()");
    auto memory = allocator.allocate(bytes);
    if (old > 0) std::memcpy(memory.get(), storage.data(), old);
    storage.set_data_ptr_noswap(std::move(memory));
    storage.set_nbytes(bytes);
  }
  t.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return t;
}

// Each result's argument where an operator returns one (`add_`, `add.out`), -1 where it returns something new.
std::vector<int> returned_arguments(const c10::FunctionSchema& schema) {
  std::vector<int> found;
  for (auto& result : schema.returns()) {
    found.push_back(-1);
    if (!result.alias_info()) continue;
    TORCH_CHECK(result.alias_info()->isWrite(), "simdev: ", schema.name(), " returns a view; register it in part 7");
    for (size_t i = 0; i < schema.arguments().size(); ++i)
      if (auto info = schema.arguments()[i].alias_info(); info && *info == *result.alias_info()) found.back() = i;
  }
  return found;
}

// Convolution comes under a name that is reserved for backends like this one; the CPU knows it as another.
c10::OperatorHandle cpu_name(const c10::OperatorHandle& op, Stack& args) {
  auto find = [](const char* name) { return c10::Dispatcher::singleton().findSchemaOrThrow(name, ""); };
  if (op.schema().name() == "aten::convolution_overrideable") return find("aten::convolution");
  if (op.schema().name() != "aten::convolution_backward_overrideable") return op;
  args.insert(args.begin() + 3, c10::List<int64_t>({args[0].toTensor().size(1)}));  // bias_sizes, the one it adds
  return find("aten::convolution_backward");
}

// Every operator without a kernel of its own arrives here, boxed: its arguments are the last values of a stack.
void fallback(const c10::OperatorHandle& called, Stack* stack) {
  Stack args(stack->end() - called.schema().arguments().size(), stack->end());
  stack->resize(stack->size() - args.size());
  const auto op = cpu_name(called, args);
  const auto& parameters = op.schema().arguments();
  const auto returned = returned_arguments(op.schema());
  const bool capturing = is_capturing();
  auto is_out = [&](int i) { return i >= 0 && parameters[i].is_out() && args[i].isTensor(); };
  Kernel kernel{op.schema().name(), {}, {}, {}};
  kernel.name.erase(0, kernel.name.find("::") + 2);

  // The arguments as the CPU sees them. Host tensors are read at launch, so a capture bakes their values in. For out=
  // the CPU gets an empty tensor of its own, which it may resize.
  Stack on_cpu;
  std::vector<int> outs;
  size_t bytes = 0;
  for (int i = 0; i < static_cast<int>(args.size()); ++i) {
    if (is_out(i)) outs.push_back(i);
    on_cpu.push_back(map_tensors(args[i], [&](const Tensor& t) {
      if (!is_sim(t)) return capturing ? t.clone() : t;
      auto info = parameters[i].alias_info();
      if (info && info->isWrite()) kernel.writes.push_back(address(t));
      if (is_out(i)) return at::empty({0}, t.options().device(at::kCPU));
      kernel.reads.push_back(address(t));
      bytes += t.nbytes();
      if (capturing) recording->keep_alive(t);
      return as_cpu(t);
    }));
  }
  auto compute = [op, on_cpu, outs] {
    auto fresh = on_cpu;
    for (int i : outs) fresh[i] = at::empty({0}, fresh[i].toTensor().options());
    return call_on(at::kCPU, op, std::move(fresh));
  };

  // The results: an argument, or a new tensor. Under capture nothing may run, so the meta kernel tells what it is like.
  Stack results(returned.size()), targets(returned.size()), shapes;  // targets: where the CPU's results are copied to
  auto prepare = [&](size_t r, const IValue& like) {
    int i = returned[r];
    if (is_out(i) && args[i].toTensor().sizes() != like.toTensor().sizes())
      resize(args[i].toTensor(), like.toTensor().sizes(), {});
    results[r] = i < 0 ? map_tensors(like, empty_like_on_sim) : args[i];
    if (i < 0 || is_out(i)) targets[r] = map_tensors(results[r], as_cpu);
  };
  if (capturing) {
    bool needs_shapes = false;
    for (int i : returned) needs_shapes |= i < 0 || (is_out(i) && args[i].toTensor().numel() == 0);
    if (needs_shapes) shapes = infer(op, args);
    for (size_t r = 0; r < results.size(); ++r) {
      prepare(r, needs_shapes ? shapes[r] : args[returned[r]]);
      if (is_out(returned[r])) recording->keep_alive(results[r].toTensor());
      if (returned[r] < 0)
        map_tensors(results[r], [&](const Tensor& t) {
          kernel.writes.push_back(address(t));
          return t;
        });
    }
    kernel.run = [compute, targets, bytes] {
      auto computed = compute();
      size_t written = 0;
      for (size_t r = 0; r < targets.size(); ++r) written += copy_values(targets[r], computed[r]);
      return bytes + written;
    };
  } else {
    kernel.run = [&] {
      auto computed = compute();
      for (size_t r = 0; r < targets.size(); ++r) {
        prepare(r, computed[r]);
        bytes += copy_values(targets[r], computed[r]);
      }
      return bytes;
    };
  }
  launch(std::move(kernel));
  for (auto& result : results) stack->push_back(std::move(result));
}

Tensor empty(IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<Device>,
             std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &allocator,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  refuse_under_capture(is_capturing() && !is_sim(to), "a copy to the host");
  refuse_under_capture(is_capturing() && !is_sim(from), "a copy from the host");
  if (is_capturing()) {
    recording->keep_alive(from);
    recording->keep_alive(to);
  }
  auto source = is_sim(from) ? as_cpu(from) : from, target = is_sim(to) ? as_cpu(to) : to;
  auto run = [source, target] {
    at::AutoDispatchBelowAutograd no_autograd;
    return target.copy_(source).nbytes() + source.nbytes();
  };
  launch({"copy", run, {address(from)}, {address(to)}});
  if (!is_sim(to)) wait_for_device();
  return to;
}

at::Scalar item(const Tensor& t) {
  refuse_under_capture(is_capturing(), ".item(), which waits for a value,");
  wait_for_device();
  return as_cpu(t).item();
}

// ------------------------------------------------------------------------------------------------- 7. registration
std::tuple<std::vector<std::string>, std::vector<double>, std::vector<double>> trace(bool on) {
  std::vector<std::string> names;  // of what was noted since tracing was turned on
  std::vector<double> begins, ends;
  for (auto& [name, begin, end] : std::exchange(spans, {})) {
    names.push_back(name);
    begins.push_back(begin);
    ends.push_back(end);
  }
  tracing = on;
  wait_for_device();
  return {names, begins, ends};
}
}  // namespace simdev

namespace at {
REGISTER_GRAPH_IMPL(SIM, ::simdev::Graph)  // the backend's name in capitals: rename_privateuse1_backend("sim")
REGISTER_HOST_ALLOCATOR(c10::DeviceType::PrivateUse1, &::simdev::host_allocator)
}  // namespace at

namespace c10 {
REGISTER_ALLOCATOR(DeviceType::PrivateUse1, &::simdev::allocator)
}  // namespace c10

namespace c10::impl {
C10_REGISTER_GUARD_IMPL(PrivateUse1, ::simdev::Guard)
}  // namespace c10::impl

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&simdev::fallback>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&simdev::fallback>());
  m.impl("convolution_backward_overrideable", torch::CppFunction::makeFromBoxedFunction<&simdev::fallback>());
  m.impl("empty.memory_format", simdev::empty);
  m.impl("empty_strided", simdev::empty_strided);
  m.impl("resize_", simdev::resize);
  m.impl("_copy_from", simdev::copy_from);
  m.impl("_local_scalar_dense", simdev::item);
  // These change a tensor's shape or storage and no data, so PyTorch's own work for any device.
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("view_as_complex", at::native::view_as_complex);
  m.impl("set_.source_Tensor", at::native::set_tensor_);
  m.impl("set_.source_Storage", at::native::set_);
  m.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
}

TORCH_LIBRARY(simdev, m) {  // torch.ops.simdev: what the tutorial asks the device, and no backend needs
  m.def("start() -> ()", [] {
    static simdev::Hooks hooks;  // from here on, this is the process's accelerator
    at::RegisterPrivateUse1HooksInterface(&hooks);
  });
  m.def("launches() -> int", [] { return simdev::launches; });
  m.def("set_launch_us(float us) -> ()", [](double us) { simdev::launch_us = us; });
  m.def("trace(bool on) -> (str[], float[], float[])", simdev::trace);
  m.def("graph_backends() -> str[]", [] { return at::GraphImplRegistry()->Keys(); });
}
