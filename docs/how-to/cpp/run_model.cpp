// Runs a compiled model from C++: needs TVM's runtime library and libtvm_ffi, no compiler and no Python.
//
//   run_model FOLDER INPUT.bin... > OUTPUT.bin
//
// FOLDER is an unpacked artifact (manifest.json, library.so, weights.bin). Each INPUT.bin holds the raw bytes of one
// input, row-major, in the manifest's order. All outputs are written one after another, raw as well.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace ffi = tvm::ffi;
namespace json = tvm::ffi::json;

constexpr size_t kAlignment = 64;  // what the kernels expect of every tensor

// Memory that a tensor does not own: the weights, mapped from their file.
struct Borrowed {
  void* at;
  void AllocData(DLTensor* tensor) { tensor->data = at; }
  void FreeData(DLTensor*) {}
};

// Memory of an input.
struct Owned {
  void AllocData(DLTensor* tensor) {
    size_t bytes = ffi::GetDataSize(*tensor);
    tensor->data = std::aligned_alloc(kAlignment, (bytes + kAlignment) / kAlignment * kAlignment);
  }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

class Model {
 public:
  // Loads an unpacked artifact. `threads` is the size of TVM's thread pool.
  Model(const std::string& folder, int threads) {
    std::ifstream file(folder + "/manifest.json");
    if (!file) throw std::runtime_error("cannot open " + folder + "/manifest.json");
    std::stringstream text;
    text << file.rdbuf();
    manifest_ = json::Parse(text.str()).cast<json::Object>();
    if (manifest_["format"].cast<int64_t>() != 8) throw std::runtime_error("another format version");
    if (manifest_["decoder"].cast<tvm::ffi::Map<tvm::ffi::String, tvm::ffi::Any>>()["in_place"].cast<bool>()) {
      throw std::runtime_error("a decoder, whose caches are buffers: see the page");
    }

    // TVM sizes its pool when it is first used, from this variable or else half the processors.
    setenv("TVM_NUM_THREADS", std::to_string(threads).c_str(), /*overwrite=*/0);
    ffi::Module library = ffi::Module::LoadFromFile(folder + "/library.so");
    ffi::Module machine = library->GetFunction("vm_load_executable").value()().cast<ffi::Module>();
    machine->GetFunction("vm_initialization").value()(1, 0, 2);  // the CPU, device 0, pooled memory
    main_ = machine->GetFunction("main").value();                // keeps the library loaded
    MapWeights(folder + "/weights.bin");
  }

  json::Array inputs() const { return manifest_["inputs"].cast<json::Array>(); }

  // Sets an open size, which the manifest has by name ("seq"); kernels trust that it is within its range.
  void SetSize(const std::string& name, int64_t size) {
    json::Object symbols = manifest_["symbols"].cast<json::Object>();
    if (!symbols.count(name)) throw std::runtime_error("the model has no open size " + name);
    json::Object range = symbols[name].cast<json::Object>();
    if (size < range["min"].cast<int64_t>() || size > range["max"].cast<int64_t>()) {
      throw std::runtime_error(name + " is out of its range");
    }
    sizes_[name] = size;
  }

  // An empty tensor for one input; fill `data_ptr()`.
  ffi::Tensor Empty(const json::Object& info) const {
    return ffi::Tensor::FromNDAlloc(Owned(), Shape(info), Type(info), DLDevice{kDLCPU, 0});
  }

  // One inference. Never call one Model from two threads at once; make a Model for each.
  std::vector<ffi::Tensor> operator()(const std::vector<ffi::Tensor>& inputs) {
    std::vector<ffi::AnyView> arguments(inputs.begin(), inputs.end());
    arguments.insert(arguments.end(), weights_.begin(), weights_.end());
    ffi::Any result;
    main_.CallPacked(arguments.data(), static_cast<int32_t>(arguments.size()), &result);
    std::vector<ffi::Tensor> outputs;
    for (const ffi::Any& item : result.cast<ffi::Array<ffi::Any>>()) outputs.push_back(item.cast<ffi::Tensor>());
    return outputs;
  }

 private:
  // Sizes that the manifest computes from others ("past + 1"), and conditions, are Python's part (tvmopt.dims).
  ffi::Shape Shape(const json::Object& info) const {
    std::vector<int64_t> sizes;
    for (const ffi::Any& size : info["shape"].cast<json::Array>()) {
      if (std::optional<ffi::String> name = size.as<ffi::String>()) {
        auto found = sizes_.find(std::string(*name));
        if (found == sizes_.end()) throw std::runtime_error("set the size " + std::string(*name));
        sizes.push_back(found->second);
      } else {
        sizes.push_back(size.cast<int64_t>());
      }
    }
    return ffi::Shape(sizes);
  }

  static DLDataType Type(const json::Object& info) {
    return ffi::StringToDLDataType(info["dtype"].cast<ffi::String>());
  }

  void MapWeights(const std::string& path) {
    int handle = open(path.c_str(), O_RDONLY);
    struct stat facts;
    if (handle < 0 || fstat(handle, &facts) != 0) throw std::runtime_error("cannot open " + path);
    char* base = nullptr;
    if (facts.st_size > 0) {
      void* mapped = mmap(nullptr, facts.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE, handle, 0);
      if (mapped == MAP_FAILED) throw std::runtime_error("cannot map " + path);
      base = static_cast<char*>(mapped);
    }
    close(handle);
    for (const ffi::Any& item : manifest_["weights"].cast<json::Array>()) {
      json::Object info = item.cast<json::Object>();
      Borrowed memory{base + info["offset"].cast<int64_t>()};
      weights_.push_back(ffi::Tensor::FromNDAlloc(memory, Shape(info), Type(info), DLDevice{kDLCPU, 0}));
    }
  }

  json::Object manifest_;
  std::map<std::string, int64_t> sizes_;
  ffi::Function main_{nullptr};
  std::vector<ffi::Tensor> weights_;
};

int main(int argc, char** argv) try {
  if (argc < 2) throw std::runtime_error("usage: run_model FOLDER [NAME=SIZE...] INPUT.bin... > OUTPUT.bin");
  Model model(argv[1], /*threads=*/2);
  std::vector<ffi::Tensor> inputs;
  int next = 2;
  for (; next < argc && std::strchr(argv[next], '='); ++next) {
    std::string text = argv[next];
    std::size_t equals = text.find('=');
    model.SetSize(text.substr(0, equals), std::stoll(text.substr(equals + 1)));
  }
  for (const ffi::Any& item : model.inputs()) {
    ffi::Tensor tensor = model.Empty(item.cast<json::Object>());
    std::streamsize bytes = ffi::GetDataSize(tensor);
    if (next == argc) throw std::runtime_error("a file for each input, please");
    std::ifstream file(argv[next++], std::ios::binary);
    if (!file.read(static_cast<char*>(tensor.data_ptr()), bytes)) {
      throw std::runtime_error(std::string(argv[next - 1]) + ": expected " + std::to_string(bytes) + " bytes");
    }
    inputs.push_back(tensor);
  }
  for (const ffi::Tensor& output : model(inputs)) {
    std::cout.write(static_cast<const char*>(output.data_ptr()), ffi::GetDataSize(output));
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << "run_model: " << error.what() << "\n";
  return 1;
}
