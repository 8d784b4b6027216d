// Search of the built site runs in a web worker, and browsers refuse workers to pages that were
// opened from disk (file:). There this stand-in runs the worker's script in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = this.onerror = this.onmessageerror = null;
      const address = new URL(url, document.baseURI).href;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.title = "search";
      this.frame.srcdoc = "<!doctype html><title>search</title>";
      this.inner = new Promise((resolve, reject) => {
        this.frame.addEventListener("load", () => {
          const inner = this.frame.contentWindow;
          inner.postMessage = (message) => {
            const data = structuredClone(message); // as between threads: both sides have their own
            setTimeout(() => this.deliver("message", { data }));
          };
          const script = inner.document.createElement("script");
          script.src = address;
          script.onload = () => resolve(inner);
          script.onerror = () => reject(new Error("cannot load " + address));
          inner.document.head.append(script);
        });
      });
      this.inner.catch((error) => this.deliver("error", { data: error }));
      document.body.append(this.frame);
    }

    deliver(type, content) {
      const event = new MessageEvent(type, content);
      this.dispatchEvent(event);
      this["on" + type]?.(event);
    }

    postMessage(message) {
      const data = structuredClone(message);
      this.inner.then(
        (inner) => inner.dispatchEvent(new inner.MessageEvent("message", { data })),
        () => {},
      );
    }

    terminate() {
      this.frame.remove();
    }
  };
}
