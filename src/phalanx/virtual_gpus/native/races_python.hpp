// Calls of the Python interpreter of this process, if there is one: find the caller's line, and raise an exception.
//
// It is built without Python's headers: these functions have the same signatures in Python 3.11 to 3.13.
#pragma once

#include <dlfcn.h>

#include <atomic>
#include <exception>
#include <string>
#include <unordered_map>
#include <vector>

#include "races_places.hpp"

// The class by which torch passes a Python exception through C++ (torch/csrc/Exceptions.h, the same members from 2.11
// to 2.15). That header needs Python's. C++ finds the type by its name, so torch and the autograd engine catch this
// declaration as their own. They read the members; the destructor is ours.
struct __attribute__((visibility("default"))) python_error : public std::exception {
  python_error(void* its_type, void* its_value, std::string text)
      : type(its_type), value(its_value), message(std::move(text)) {}
  python_error(const python_error&) = delete;
  python_error& operator=(const python_error&) = delete;
  ~python_error() override;
  const char* what() const noexcept override { return message.c_str(); }

  void* type;
  void* value;
  void* traceback = nullptr;
  std::string message;
};

namespace phalanx::devices::races {

class Python {
 public:
  Python() {
    bool is_complete = true;
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(RTLD_DEFAULT, name));
      is_complete = is_complete && function != nullptr;
    };
    find(ensure_, "PyGILState_Ensure");
    find(release_, "PyGILState_Release");
    find(check_, "PyGILState_Check");
    find(this_thread_, "PyGILState_GetThisThreadState");
    find(frame_of_, "PyThreadState_GetFrame");
    find(back_of_, "PyFrame_GetBack");
    find(code_of_, "PyFrame_GetCode");
    find(line_of_, "PyFrame_GetLineNumber");
    find(attribute_of_, "PyObject_GetAttrString");
    find(text_of_, "PyUnicode_AsUTF8");
    find(type_of_, "PyObject_Type");
    find(increase_, "Py_IncRef");
    find(decrease_, "Py_DecRef");
    find(clear_error_, "PyErr_Clear");
    find(is_initialized_, "Py_IsInitialized");
    is_there_ = is_complete;
    is_finalizing_ = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "Py_IsFinalizing"));  // 3.13
    if (is_finalizing_ == nullptr) is_finalizing_ = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "_Py_IsFinalizing"));
  }

  // Leave out frames of files whose paths begin with this prefix. Call it before the detector is on.
  void hide(std::string prefix) { hidden_.push_back(std::move(prefix)); }

  bool is_usable() const {
    return is_there_ && is_initialized_() != 0 && (is_finalizing_ == nullptr || is_finalizing_() == 0);
  }
  bool holds_lock() const { return is_usable() && check_() != 0; }

  // The innermost frame of the user's code in this thread; takes the GIL.
  Place caller() {
    if (!is_usable() || this_thread_() == nullptr) return {};
    const Lock lock(*this);
    return innermost_of_user();
  }

  void release(void* object) {
    if (object == nullptr || !is_usable()) return;
    const Lock lock(*this);
    decrease_(object);
  }

  // Steals the reference.
  [[noreturn]] void raise(void* exception, const std::string& text) {
    void* type;
    {
      const Lock lock(*this);
      type = type_of_(exception);
    }
    throw python_error(type, exception, text);
  }

 private:
  class Lock {
   public:
    explicit Lock(Python& python) : python_(python), state_(python.ensure_()) {}
    ~Lock() { python_.release_(state_); }

   private:
    Python& python_;
    int state_;
  };

  struct Code {
    bool is_hidden = false;
    const std::string *file = nullptr, *function = nullptr;
  };

  Place innermost_of_user() {
    Place shown, innermost;
    void* frame = frame_of_(this_thread_());
    while (frame != nullptr) {
      void* code = code_of_(frame);
      const Code& known = look_at(code);
      decrease_(code);
      if (!known.is_hidden) {
        shown = {known.file, line_of_(frame), known.function};
        decrease_(frame);
        return shown;
      }
      if (!innermost.is_known()) innermost = {known.file, line_of_(frame), known.function};
      void* back = back_of_(frame);
      decrease_(frame);
      frame = back;
    }
    return innermost;
  }

  // The GIL guards codes_. It keeps each code object alive, because another one could get its address.
  const Code& look_at(void* code) {
    const auto found = codes_.find(code);
    if (found != codes_.end()) return found->second;
    if (codes_.size() >= kMostCodes) {
      for (const auto& [kept, known] : codes_) decrease_(kept);
      codes_.clear();
    }
    increase_(code);
    Code& known = codes_[code];
    known.file = names.get(attribute(code, "co_filename"));
    known.function = names.get(attribute(code, "co_qualname"));
    known.is_hidden = std::any_of(hidden_.begin(), hidden_.end(),
                                  [&](const std::string& prefix) { return known.file->starts_with(prefix); });
    return known;
  }

  std::string attribute(void* object, const char* name) {
    void* value = attribute_of_(object, name);
    const char* text = value != nullptr ? text_of_(value) : nullptr;
    std::string copied = text != nullptr ? text : "?";
    if (text == nullptr) clear_error_();
    if (value != nullptr) decrease_(value);
    return copied;
  }

  static constexpr std::size_t kMostCodes = 1 << 15;

  bool is_there_ = false;
  std::vector<std::string> hidden_;
  std::unordered_map<void*, Code> codes_;

  int (*ensure_)();
  void (*release_)(int);
  int (*check_)();
  void* (*this_thread_)();
  void* (*frame_of_)(void*);
  void* (*back_of_)(void*);
  void* (*code_of_)(void*);
  int (*line_of_)(void*);
  void* (*attribute_of_)(void*, const char*);
  const char* (*text_of_)(void*);
  void* (*type_of_)(void*);
  void (*increase_)(void*);
  void (*decrease_)(void*);
  void (*clear_error_)();
  int (*is_initialized_)();
  int (*is_finalizing_)();
};

// Never destroyed: threads of torch may still ask at the end of the process.
inline Python& python = *new Python;

}  // namespace phalanx::devices::races

inline python_error::~python_error() {
  for (void* part : {type, value, traceback}) phalanx::devices::races::python.release(part);
}
