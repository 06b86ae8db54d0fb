// The theme searches in a worker, which browsers refuse to pages that are opened from the disk. There, and only there,
// the worker's file runs in a hidden frame instead.
if (location.protocol === "file:")
  window.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.append(this.frame)
      const inside = this.frame.contentWindow
      const script = inside.document.createElement("script")
      script.src = url
      inside.postMessage = message => {
        const data = structuredClone(message) // as between threads
        setTimeout(() => this.onmessage?.({ data }))
      }
      this.ready = new Promise((resolve, reject) => {
        script.onload = resolve
        script.onerror = () => reject(this.onerror?.(new ErrorEvent("error")))
      })
      inside.document.body.append(script)
    }
    postMessage(message) {
      const data = structuredClone(message)
      this.ready.then(() => this.frame.contentWindow.onmessage({ data }))
    }
    terminate() {
      this.frame.remove()
    }
  }
