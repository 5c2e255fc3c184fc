// The Python frames of this thread, from the innermost outwards: code, instruction and line of each.
//
// Frame objects cost an allocation each, so this reads the interpreter's own frames where it knows what they look like (they are
// no part of Python's interface), and asks for frame objects elsewhere. Needs the GIL, and no Python code may run meanwhile.
#pragma once

#include <Python.h>

#include <cstdint>

namespace phalanx::python {

#if PY_VERSION_HEX >= 0x030b0000 && PY_VERSION_HEX < 0x030d0000
class FrameWalk {
 public:
  FrameWalk() noexcept : frame_(reinterpret_cast<const Frame*>(PyThreadState_Get()->cframe->current_frame)) { skip_native(); }

  bool is_over() const noexcept { return frame_ == nullptr; }
  PyCodeObject* code() const noexcept { return frame_->code; }
  // Unique while the code lives.
  const void* instruction() const noexcept { return frame_->instruction; }
  int line() const noexcept {
    const auto* start = reinterpret_cast<const char*>(frame_->code->co_code_adaptive);
    return PyCode_Addr2Line(frame_->code, static_cast<int>(static_cast<const char*>(frame_->instruction) - start));
  }
  void next() noexcept {
    frame_ = frame_->previous;
    skip_native();
  }

 private:
  // The beginning of _PyInterpreterFrame.
  struct Frame {
#if PY_VERSION_HEX < 0x030c0000
    PyObject *function, *globals, *builtins, *locals;
    PyCodeObject* code;
    PyFrameObject* object;
    Frame* previous;
    const void* instruction;
    int stack_top;
    bool is_entry;
    char owner;
#else
    PyCodeObject* code;
    Frame* previous;
    PyObject *function, *globals, *builtins, *locals;
    PyFrameObject* object;
    const void* instruction;
    int stack_top;
    std::uint16_t return_offset;
    char owner;
#endif
  };
  void skip_native() noexcept {
#if PY_VERSION_HEX >= 0x030c0000
    constexpr char kOwnedByNativeStack = 3;  // where C called Python
    while (frame_ != nullptr && frame_->owner == kOwnedByNativeStack) frame_ = frame_->previous;
#endif
  }

  const Frame* frame_;
};
#else
class FrameWalk {
 public:
  FrameWalk() noexcept : frame_(PyEval_GetFrame()) {
    Py_XINCREF(reinterpret_cast<PyObject*>(frame_));
    read();
  }
  ~FrameWalk() { Py_XDECREF(reinterpret_cast<PyObject*>(frame_)); }
  FrameWalk(const FrameWalk&) = delete;

  bool is_over() const noexcept { return frame_ == nullptr; }
  PyCodeObject* code() const noexcept { return code_; }
  const void* instruction() const noexcept { return reinterpret_cast<const char*>(code_) + PyFrame_GetLasti(frame_); }
  int line() const noexcept { return PyFrame_GetLineNumber(frame_); }
  void next() noexcept {
    PyFrameObject* back = PyFrame_GetBack(frame_);
    Py_DECREF(reinterpret_cast<PyObject*>(frame_));
    frame_ = back;
    read();
  }

 private:
  void read() noexcept {
    if (frame_ == nullptr) return;
    code_ = PyFrame_GetCode(frame_);
    Py_DECREF(reinterpret_cast<PyObject*>(code_));  // the frame holds it
  }

  PyFrameObject* frame_;
  PyCodeObject* code_ = nullptr;
};
#endif

}  // namespace phalanx::python
